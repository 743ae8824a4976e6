"""`bench tcp`: our own streams, iperf3, and a record that distinguishes them."""

from __future__ import annotations

import shutil
import socket
import threading

import numpy as np
import pytest

from tensorwire.bench.experiments.raw import RawTcp
from tensorwire.bench.experiments.tcp import Tcp, TcpResult
from tensorwire.bench.frame import showing
from tensorwire.bench.frame.record import Record


def test_every_message_arrives_before_a_block_is_done() -> None:
    tcp = RawTcp()
    pairs = [socket.socketpair() for _ in range(3)]
    source = [np.full(1000, index + 1, dtype=np.uint8) for index in range(3)]
    arrived = [np.zeros(1000, dtype=np.uint8) for _ in range(3)]
    threads = [
        threading.Thread(target=tcp.receive, args=(there.fileno(), buffer))
        for (_, there), buffer in zip(pairs, arrived, strict=True)
    ]
    for thread in threads:
        thread.start()
    seconds = tcp.send([here.fileno() for here, _ in pairs], source, messages=500)
    assert seconds > 0
    for sent, got in zip(source, arrived, strict=True):
        assert np.array_equal(sent, got)
    for here, _ in pairs:
        here.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    for _, there in pairs:
        there.close()


def measured() -> Record[TcpResult]:
    return Tcp(streams=(2,), message_size=65536, seconds=1, rounds=1).run()


def test_our_streams_are_measured_without_iperf3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorwire.bench.experiments.tcp.iperf3_is_installed", lambda: False)
    record = measured()
    (result,) = record.results
    assert (result.implementation, result.streams, result.message_size) == ("tcp", 2, 65536)
    assert result.mb_per_s > 0
    assert "iperf3" in showing.section(record).notes[0]
    (read,) = Record.from_json(record.to_json()).results
    assert isinstance(read, TcpResult)
    assert read.message_size == 65536


@pytest.mark.skipif(shutil.which("iperf3") is None, reason="iperf3 is not installed")
def test_iperf3_has_its_turn_and_a_row_with_its_version() -> None:
    record = measured()
    ours, theirs = record.results
    assert (ours.implementation, ours.streams) == ("tcp", 2)
    assert theirs.implementation.startswith("iperf3 3.")
    assert theirs.mb_per_s > 0
    assert list(record.ratios) == ["tcp x2/iperf3 x2"]
    assert [row[0] for row in showing.section(record).tables[0].rows] == [
        "tcp",
        theirs.implementation,
    ]
