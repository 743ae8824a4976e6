"""Links of a lab that are cut, or lose, delay and reorder packets, under traffic."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.relaying import DisturbedLink, RelayedLab
from tensorwire.bench.lab import Host, HostSettings, Lab, LabSettings
from tensorwire.errors import UsageError

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces take root"),
    pytest.mark.timeout(60),
]

ECHO = """
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("", 7))
print(flush=True)
while True:
    server.sendto(*server.recvfrom(2000))
"""

# A line is the number of datagrams to send. The next line follows when the link works again, and is
# the number of echoes that must arrive. The answer has the numbers of the echoes in their order.
PROBE = """
import socket, sys
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.connect((sys.argv[1], 7))
client.settimeout(0.5)
for round, line in enumerate(sys.stdin):
    for number in range(int(line)):
        client.send(b"%d %d" % (round, number))
    print(flush=True)
    least = int(sys.stdin.readline())
    heard, ended = [], False
    client.send(b"%d end" % round)
    while not ended or len(heard) < least:
        try:
            of, _, what = client.recv(2000).partition(b" ")
        except TimeoutError:
            client.send(b"%d end" % round)
            continue
        if int(of) == round:
            if what == b"end":
                ended = True
            else:
                heard.append(int(what))
    print(*heard, flush=True)
"""


@dataclass
class Probe:
    lab: Lab
    process: subprocess.Popen[str]

    def __call__(self, count: int, settings: HostSettings) -> list[int]:
        """The echoes of `count` datagrams that host1 sends to host0 over its own link."""
        self.lab.set(1, settings)
        self.ask(count)
        self.lab.set(1, HostSettings())
        is_lost = isinstance(settings, DisturbedLink) and settings.loss
        least = 0 if is_lost or settings.is_cut else count
        return [int(number) for number in self.ask(least).split()]

    def ask(self, line: int) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()


def started(stack: contextlib.ExitStack, host: Host, *argv: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        host.command([sys.executable, *argv]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    stack.enter_context(process)
    stack.callback(process.kill)
    return process


def probing(stack: contextlib.ExitStack, lab: Lab) -> Probe:
    probe = Probe(lab, started(stack, lab.hosts[1], "-c", PROBE, lab.hosts[0].address))
    # Packets wait for address resolution and may be overtaken, so send one first.
    assert probe(1, HostSettings()) == [0]
    return probe


@pytest.fixture
def probe() -> Iterator[Probe]:
    pytest.importorskip("pyroute2")
    if not Path("/dev/net/tun").exists():
        pytest.skip("this machine has no /dev/net/tun")
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(RelayedLab(LabSettings.alike(2, HostSettings())))
        assert lab.has_network, lab.notes
        echo = started(stack, lab.hosts[0], "-c", ECHO)
        assert echo.stdout is not None
        echo.stdout.readline()
        yield probing(stack, lab)
        assert not lab.notes


def test_packets_are_lost_late_or_cut_off_as_the_link_says(probe: Probe) -> None:
    every = list(range(200))
    assert probe(200, HostSettings()) == every
    # A third is lost on the way there, and a third of the rest on the way back.
    assert 40 < len(probe(200, DisturbedLink(loss=1 / 3))) < 170
    overtaken = probe(200, DisturbedLink(late=0.2, late_s=0.05))
    assert sorted(overtaken) == every
    assert overtaken != every
    assert probe(200, HostSettings(delay_s=0.02)) == every
    assert probe(200, HostSettings(is_cut=True)) == []
    assert probe(200, HostSettings()) == every


def test_a_round_trip_has_the_delay_twice(probe: Probe) -> None:
    probe.lab.set(1, HostSettings(delay_s=0.1))
    begin = time.monotonic()
    probe.ask(0)
    probe.ask(0)
    assert time.monotonic() - begin >= 0.2


def test_a_lab_without_a_relay_cuts_links() -> None:
    pytest.importorskip("pyroute2")
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(Lab(LabSettings.alike(2, HostSettings())))
        echo = started(stack, lab.hosts[0], "-c", ECHO)
        assert echo.stdout is not None
        echo.stdout.readline()
        probe = probing(stack, lab)
        assert probe(10, HostSettings()) == list(range(10))
        assert probe(10, HostSettings(is_cut=True)) == []
        assert not lab.notes


@pytest.mark.parametrize("wrong", [{"loss": 1.1}, {"late": -0.1}, {"late_s": 11.0}])
def test_what_no_link_can_do_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        DisturbedLink(**wrong)
