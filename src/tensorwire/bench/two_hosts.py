"""`bench transfer` with its ps and its worker on different hosts, each started by hand.

Every wait for the other host has a deadline, and says whom it waits for.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from tensorwire.bench import stats
from tensorwire.bench.record import Record, TransferResult
from tensorwire.bench.sides import (
    DEFAULT_SETTING,
    Setting,
    Tensors,
    Watcher,
    ask,
    request_timeout_s,
    task_argv,
    wait_started,
)
from tensorwire.errors import TensorwireError
from tensorwire.lab import LocalCluster, Task

_POLL_S = 0.5
_REQUEST_TIMEOUT_S = 60.0
_PEER_GONE_S = 3.0


@dataclass(frozen=True)
class Hosts:
    """The two tasks' gRPC addresses, "host:port", and the protocol between them."""

    ps: str
    worker: str
    protocol: str
    setting: Setting = DEFAULT_SETTING
    peer_timeout_s: float = 120.0
    """How long one host waits for the other to come up."""


def serve(hosts: Hosts, watcher: Watcher) -> None:
    """The ps: serves until the worker says that it is done.

    Raises:
        TensorwireError: no worker came in time, it went too early, or the server failed.
    """
    with LocalCluster({"ps": 1}) as cluster:
        task, _ = _start(cluster, "ps", hosts, watcher)

        # The worker may have come and gone before the first look at its port.
        def is_done() -> bool:
            return bool(ask(cluster, task, {"do": "finished"}, _REQUEST_TIMEOUT_S)["finished"])

        watcher.activity(f"waiting for the worker at {hosts.worker}")
        if _wait_for_peer(hosts.worker, "worker", hosts.peer_timeout_s, is_done):
            return
        watcher.activity(f"serving the worker at {hosts.worker}")
        last_seen = time.monotonic()
        while not is_done():
            if _is_listening(hosts.worker):
                last_seen = time.monotonic()
            elif time.monotonic() - last_seen > _PEER_GONE_S:
                raise TensorwireError(f"the worker at {hosts.worker} went before it was done")
            time.sleep(_POLL_S)


def measure(hosts: Hosts, tensors: Tensors, iters: int, watcher: Watcher) -> Record[TransferResult]:
    """The worker: assigns its tensor to the ps's, `iters` times.

    The record has no ratios, and no CPU time: half of it is spent on the other host.

    Raises:
        TensorwireError: no ps came in time, or a task failed.
    """
    with LocalCluster({"worker": 1}) as cluster:
        task, tensorflow = _start(cluster, "worker", hosts, watcher)
        watcher.activity(f"waiting for the ps at {hosts.ps}")
        _wait_for_peer(hosts.ps, "ps", hosts.peer_timeout_s, lambda: _stop_if_failed(cluster))
        watcher.activity("warming up")
        case = {"case": tensors.name}
        ask(
            cluster,
            task,
            {"do": "build", **case, "tensors": tensors.count, "floats": tensors.floats},
            request_timeout_s(tensors, 4),
        )
        run = {"do": "run", **case}
        ask(cluster, task, {**run, "iters": 2}, request_timeout_s(tensors, 2))
        watcher.activity("measuring")
        rounds: list[list[float]] = []
        for count in stats.split(iters, iters):
            reply = ask(cluster, task, {**run, "iters": count}, request_timeout_s(tensors, count))
            rounds.append(reply["step_s"])
            watcher.advance()
        reply = ask(cluster, task, {"do": "verify", **case}, request_timeout_s(tensors, 4))
        if not reply["equal"]:
            raise TensorwireError(f"the ps at {hosts.ps} does not hold what this worker sent")
        ask(cluster, task, {"do": "finish"}, _REQUEST_TIMEOUT_S)
    result = TransferResult(
        protocol=hosts.protocol,
        tensor_fuse=hosts.setting.tensor_fuse,
        data_mb=tensors.data_mb,
        tensors=tensors.count,
        iters=iters,
        mb_per_s=tensors.data_mb / stats.typical_s(rounds),
        step_ms=stats.step_ms(rounds),
        cpu_s_per_gb=None,
    )
    return Record("bench transfer", tensorflow, [result], ratios={})


def _start(cluster: LocalCluster, job: str, hosts: Hosts, watcher: Watcher) -> tuple[Task, str]:
    """The task of this host, and its version of TensorFlow."""
    task = cluster.start(
        job, 0, task_argv("tensor_task"), env=hosts.setting.task_environment(), channel=True
    )
    setup = {
        "protocol": hosts.protocol,
        "spec": {"ps": [hosts.ps], "worker": [hosts.worker]},
        "job": job,
        "index": 0,
        "tensor_fuse": hosts.setting.tensor_fuse,
    }
    task.channel.send(setup)
    return task, wait_started(cluster, task, watcher)


def _is_listening(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=2.0).close()
    except OSError:
        return False
    return True


def _stop_if_failed(cluster: LocalCluster) -> bool:
    cluster.check()
    return False


def _wait_for_peer(address: str, job: str, timeout_s: float, is_done: Callable[[], bool]) -> bool:
    """Waits until the other host listens; returns whether everything is done already."""
    deadline = time.monotonic() + timeout_s
    while not _is_listening(address):
        if is_done():
            return True
        if time.monotonic() > deadline:
            raise TensorwireError(
                f"no {job} at {address} after {timeout_s:g} s: start it there with --job {job} "
                "and the same --ps-hosts and --worker-hosts, and see that the port is open"
            )
        time.sleep(_POLL_S)
    return False
