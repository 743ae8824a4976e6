"""Bytes of connections by port, from the kernel's counters."""

from __future__ import annotations

import socket

import pytest

from kernel import counts_bytes
from tensorwire.bench.experiments.train import received_bytes


@pytest.mark.skipif(not counts_bytes(), reason="the kernel does not count bytes of connections")
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
            before = received_bytes([port]) or 0
            client.sendall(b"x" * 5000)
            accepted.recv(5000, socket.MSG_WAITALL)
            accepted.sendall(b"y" * 300)
            client.recv(300, socket.MSG_WAITALL)
            other_client.sendall(b"z" * 700)
            other_accepted.recv(700, socket.MSG_WAITALL)

            assert received_bytes([port]) == before + 5300
