"""Two ends of a measurement connect to each other, or report why they cannot."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection

import pytest

from tensorwire.bench.frame import several_hosts
from tensorwire.bench.frame.several_hosts import Hello, Peer, PeerGone, accept_peer, call_peer
from tensorwire.bench.lab.ports import PortLease, listen
from tensorwire.errors import TensorwireError

PS = Hello("bench transfer", "ps:0", "2.21.0")
WORKER = Hello("bench transfer", "worker:0", "2.21.0")


@pytest.fixture
def address() -> Iterator[str]:
    lease = PortLease()
    yield f"127.0.0.1:{lease.take()}"
    lease.release()


@pytest.fixture
def elsewhere() -> Iterator[Callable[..., Future[Peer]]]:
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit


def await_peer(address: str, me: Hello, expected: str, timeout_s: float) -> Peer:
    with listen(address) as server:
        return accept_peer(server, me, expected, time.monotonic() + timeout_s)


def listening(address: str) -> socket.socket:
    """Connects to `address` as soon as a process listens there."""
    host, _, port = address.rpartition(":")
    for _ in range(200):
        with contextlib.suppress(OSError):
            return socket.create_connection((host, int(port)), 10)
        threading.Event().wait(0.05)
    raise AssertionError(f"nobody listens at {address}")


def test_both_ends_learn_who_the_other_is_and_talk(
    address: str, elsewhere: Callable[..., Future[Peer]]
) -> None:
    waiting = elsewhere(await_peer, address, PS, "worker at host2:1", 30)
    with call_peer(address, WORKER, "ps at host1:1", 30) as worker, waiting.result(30) as ps:
        assert (worker.hello, ps.hello) == (PS, WORKER)
        worker.send({"size": 1})
        worker.send({"size": 2})
        assert [ps.receive(10), ps.receive(10)] == [{"size": 1}, {"size": 2}]
        # The measured server listens at the address of the greeting.
        host, _, port = address.rpartition(":")
        socket.create_server((host, int(port))).close()


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (Hello("bench steps", "worker:0", "2.21.0"), "bench transfer at ps:0"),
        (Hello("bench transfer", "worker:0", "2.15.1"), "TensorFlow: 2.21.0 at ps:0"),
        (Hello("bench transfer", "worker:0", None), "none at worker:0"),
        (Hello("bench transfer", "worker:0", "2.21.0", version="9.9"), "9.9 at worker:0"),
    ],
)
def test_ends_that_do_not_fit_fail_both_with_the_same_words(
    address: str, elsewhere: Callable[..., Future[Peer]], other: Hello, says: str
) -> None:
    waiting = elsewhere(await_peer, address, PS, "worker at host2:1", 30)
    with pytest.raises(TensorwireError, match=says) as here:
        call_peer(address, other, "ps at host1:1", 30)
    with pytest.raises(TensorwireError) as there:
        waiting.result(30)
    assert str(here.value) == str(there.value)


def test_a_peer_that_does_not_come_is_named_at_the_deadline(address: str) -> None:
    with pytest.raises(TensorwireError, match=r"worker at host2:1 did not connect to port"):
        await_peer(address, PS, "worker at host2:1", 0.1)
    with pytest.raises(TensorwireError, match=r"no ps at host1:1 after 0.1 s \(Connection refused"):
        call_peer(address, WORKER, "ps at host1:1", 0.1)


def test_a_stranger_does_not_end_the_wait(
    address: str, elsewhere: Callable[..., Future[Peer]]
) -> None:
    waiting = elsewhere(await_peer, address, PS, "worker at host2:1", 30)
    listening(address).close()
    with listening(address) as browser:
        browser.sendall(b"GET / HTTP/1.1\r\n\r\n")
    with call_peer(address, WORKER, "ps at host1:1", 30), waiting.result(30) as ps:
        assert ps.hello == WORKER


def test_a_port_in_use_is_named(address: str) -> None:
    host, _, port = address.rpartition(":")
    with (
        socket.create_server((host, int(port))),
        pytest.raises(TensorwireError, match=f"port {port} is in use"),
    ):
        await_peer(address, PS, "worker at host2:1", 30)


def test_the_loss_of_the_line_says_who_went(
    address: str, elsewhere: Callable[..., Future[Peer]]
) -> None:
    waiting = elsewhere(await_peer, address, PS, "worker at host2:1", 30)
    with call_peer(address, WORKER, "ps at host1:1", 30) as worker:
        waiting.result(30).close()
        with pytest.raises(PeerGone, match=f"ps:0 at {address} ended before it was done"):
            worker.receive(10)


def test_a_peer_with_another_job_token_is_a_stranger(
    address: str, elsewhere: Callable[..., Future[Peer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = iter([b"ours", b"theirs"] * 100)
    monkeypatch.setattr(several_hosts, "token", lambda: next(tokens))
    waiting = elsewhere(await_peer, address, PS, "worker at host2:1", 2)
    with pytest.raises(TensorwireError, match="has another job token"):
        call_peer(address, WORKER, "ps at host1:1", 1)
    with pytest.raises(TensorwireError, match="worker at host2:1 did not connect"):
        waiting.result(30)


def test_an_agent_listens_at_the_address_that_it_was_given(address: str) -> None:
    port = int(address.rpartition(":")[2])
    with listen(address), pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), 10)
    with listen(f":{port}"):
        socket.create_connection(("127.0.0.2", port), 10).close()


def test_a_message_is_data_and_never_code(
    address: str, elsewhere: Callable[..., Future[Peer]]
) -> None:
    waiting = elsewhere(await_peer, address, PS, "worker at host2:1", 30)
    with call_peer(address, WORKER, "ps at host1:1", 30) as worker, waiting.result(30) as ps:
        Connection(os.dup(worker.fileno())).send(print)
        with pytest.raises(TensorwireError, match="sent an invalid message"):
            ps.receive(10)
