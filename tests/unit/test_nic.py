"""`tensorwire nic`: rates of the interfaces."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tensorwire.errors import UsageError
from tensorwire.metrics.nic import NicRate, Watch, choose, nominal_mbit_per_s
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
    watch = Watch(["lo"])
    moved = threading.Thread(target=move_over_loopback, args=(20 * MB,))
    moved.start()
    (rate,) = next(watch.intervals(0.5))
    moved.join()
    (average,) = watch.averages()
    for each in (rate, average):
        assert each.interface == "lo"
        assert each.in_bytes == pytest.approx(each.out_bytes, rel=0.05)
    assert average.in_bytes >= 20 * MB
    assert average.in_kb_per_s == pytest.approx(average.in_bytes / 1e3 / average.seconds)


def test_intervals_follow_one_another_without_a_gap() -> None:
    watch = Watch(["lo"])
    intervals: Iterator[list[NicRate]] = watch.intervals(0.05)
    total = 0
    for _ in range(4):
        move_over_loopback(2 * MB)
        total += next(intervals)[0].in_bytes
    assert total >= 8 * MB
    assert total <= watch.averages()[0].in_bytes


def test_the_share_is_of_the_busier_direction() -> None:
    rate = NicRate("eth0", 2.0, in_bytes=25 * MB, out_bytes=125 * MB, mbit_per_s=1000)
    assert rate.in_kb_per_s == 12_500
    assert rate.share == pytest.approx(0.5)
    assert NicRate("lo", 1.0, 1, 1, None).share is None


def test_loopback_has_no_nominal_speed_and_what_is_not_there_none_either() -> None:
    assert nominal_mbit_per_s("lo") is None
    assert nominal_mbit_per_s("no such interface") is None


def test_lines_stand_below_their_interface() -> None:
    rates = [
        NicRate("eth0", 1.0, 1_170 * MB, 2_500, 10_000),
        NicRate("lo", 1.0, 0, 0, None),
    ]
    names, units = lines.header(rates)
    assert "eth0 (10 Gbit/s)" in names
    line = lines.line(rates)
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
