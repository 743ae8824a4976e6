"""`tensorwire nic`: rates of the interfaces."""

from __future__ import annotations

import itertools
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

import pytest

from tensorwire.errors import UsageError
from tensorwire.metrics.nic import NicRate, choose, nominal_mbit_per_s, rates, read, readings
from tensorwire.report import top as lines

MB = 1_000_000


def move_over_loopback(size: int) -> None:
    """Sends and receives `size` bytes within this process."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as out,
        server.accept()[0] as arrived,
    ):
        sender = threading.Thread(target=out.sendall, args=(bytes(size),))
        sender.start()
        left = size
        while left > 0:
            left -= len(arrived.recv(1 << 20))
        sender.join()


def test_what_loopback_moves_is_counted_in_both_directions() -> None:
    before = read()
    move_over_loopback(20 * MB)
    after = read()
    (rate,) = rates(["lo"], before, after)
    assert rate.interface == "lo"
    assert rate.in_kb_per_s == pytest.approx(rate.out_kb_per_s, rel=0.05)
    assert rate.in_kb_per_s * (after[0] - before[0]) >= 20 * MB / 1e3


def test_readings_follow_one_another_at_equal_intervals() -> None:
    begun, *others = (time_s for time_s, _ in itertools.islice(readings(0.05), 4))
    for number, time_s in enumerate(others, 1):
        assert time_s - begun >= 0.05 * number - 0.01


def test_an_interface_that_was_made_again_counts_from_zero_and_one_that_is_gone_not() -> None:
    before = (1.0, {"eth0": (5000, 5000), "eth1": (1, 1)})
    (rate,) = rates(["eth0", "eth1"], before, (2.0, {"eth0": (1000, 2000)}))
    assert (rate.in_kb_per_s, rate.out_kb_per_s) == (1.0, 2.0)


def test_the_share_is_of_the_busier_direction() -> None:
    assert NicRate("eth0", 12_500, 62_500, mbit_per_s=1000).share == pytest.approx(0.5)
    assert NicRate("lo", 1.0, 1.0, None).share is None


def test_loopback_has_no_nominal_speed_and_what_is_not_there_none_either() -> None:
    assert nominal_mbit_per_s("lo") is None
    assert nominal_mbit_per_s("no such interface") is None


def test_lines_stand_below_their_interface() -> None:
    found = [
        NicRate("eth0", 1_170_000.0, 2.5, 10_000),
        NicRate("lo", 0.0, 0.0, None),
    ]
    names, units = lines.header(found)
    assert "eth0 (10 Gbit/s)" in names
    line = lines.line(found)
    assert len(line) == len(units)
    assert line.split() == ["1,170,000.0", "2.5", "93.6%", "0.0", "0.0", "-"]


def test_an_interface_that_there_is_not_is_named_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match=r"no interface 'eth99': choose from .*lo"):
        choose(["eth99"])
    assert "lo" in choose([])


def test_the_command_ends_after_its_lines_with_the_averages(tensorwire: Any) -> None:
    done = tensorwire("nic", "lo", "--interval", "0.1", "--count", "2")
    assert done.returncode == 0, done.stderr
    output = done.stdout.splitlines()
    assert len(output) == 5
    assert output[0].strip() == "lo"
    assert output[-1].endswith("average")


def test_ctrl_c_shows_the_averages() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tensorwire.cli.main", "nic", "lo", "--interval", "0.1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for _ in range(4):
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=20)
    assert process.returncode == 0, errors
    assert errors == ""
    assert rest.splitlines()[-1].endswith("average")
