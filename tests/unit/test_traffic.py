"""Bytes of connections by port, from the kernel's counters."""

from __future__ import annotations

import socket

import pytest

from tensorwire.bench import traffic


def bytes_of(port: int) -> int:
    try:
        return traffic.received_bytes([port])
    except traffic.TrafficUnavailable as error:
        pytest.skip(f"the kernel does not tell: {error}")


def test_both_directions_of_a_local_connection_are_counted_once_and_others_not() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_server(("127.0.0.1", 0)) as other_server,
        socket.create_connection(server.getsockname()) as client,
        socket.create_connection(other_server.getsockname()) as other_client,
    ):
        accepted, _ = server.accept()
        other_accepted, _ = other_server.accept()
        port = server.getsockname()[1]
        with accepted, other_accepted:
            before = bytes_of(port)
            client.sendall(b"x" * 5000)
            accepted.recv(5000, socket.MSG_WAITALL)
            accepted.sendall(b"y" * 300)
            client.recv(300, socket.MSG_WAITALL)
            other_client.sendall(b"z" * 700)
            other_accepted.recv(700, socket.MSG_WAITALL)

            assert bytes_of(port) - before == 5300
