"""The ceilings (upper limits) of `bench transfer`: programs that move the bytes without TensorFlow.

These are one raw TCP stream and, within this machine, one memcpy of a buffer of the same size. Over
a link, which is slower than memory, iperf3 replaces memcpy if it is installed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorwire.bench.experiments.raw_task import MemcpyTask, TcpTask
from tensorwire.bench.experiments.tensor_sides import Tensors
from tensorwire.bench.frame import statistics
from tensorwire.bench.frame.experiment import Case, Side
from tensorwire.bench.frame.host_pool import THIS_MACHINE, HostPool
from tensorwire.bench.frame.hosted_task import HostedTask, request
from tensorwire.bench.frame.record import Result
from tensorwire.bench.frame.statistics import Rounds
from tensorwire.bench.frame.task_processes import TaskProcesses, Watcher, wait_ready
from tensorwire.bench.lab import LocalCluster
from tensorwire.bench.lab.channel import Message
from tensorwire.bench.lab.ports import listening_ports
from tensorwire.cluster import split_address
from tensorwire.errors import TensorwireError

IPERF3 = "iperf3"
LARGEST_MESSAGE_BYTES = 1 << 20
"""The largest message that these programs send or receive over TCP."""
_SLACK_S = 30.0


def version() -> str:
    """The version of iperf3, such as "3.12"; "" if it is not installed."""
    if not is_installed():
        return ""
    told = subprocess.run([IPERF3, "--version"], capture_output=True, text=True, check=False)
    words = told.stdout.split()
    return words[1] if len(words) > 1 else ""


def is_installed() -> bool:
    return shutil.which(IPERF3) is not None


class Iperf3Task(HostedTask):
    """The server of iperf3, at any host."""

    def ready(self) -> Message:
        return {"is_installed": is_installed()}

    @request
    def serve(self, port: int) -> Message:
        server = subprocess.Popen([IPERF3, "--server", "--port", str(port)], stdout=2)
        deadline = time.monotonic() + _SLACK_S
        while port not in listening_ports(os.getpid()):
            if server.poll() is not None or time.monotonic() > deadline:
                raise TensorwireError(f"iperf3 does not listen on port {port}")
            time.sleep(0.05)
        return {}


class Iperf3(TaskProcesses):
    """iperf3: a server at one end; each measurement starts a client at the other end."""

    def __init__(self, host_pool: HostPool = THIS_MACHINE) -> None:
        super().__init__(host_pool.cluster({"server": 1, "client": 1}))

    def _start(self) -> None:
        self._start_task("server", Iperf3Task, {})

    def wait_started(self, watcher: Watcher) -> bool:
        """Makes the server listen; False if its host has no iperf3."""
        process = self._processes["server"]
        if not wait_ready(self._cluster, process, watcher)["is_installed"]:
            return False
        self._ask("server", {"do": "serve", "port": split_address(process.address)[1]})
        return True

    def mb_per_s(
        self, seconds: int = 1, streams: int = 1, message_size: int | None = None
    ) -> float:
        """MB (10^6 bytes) received per second, over all streams."""
        host, port = split_address(self.address("server"))
        argv = [IPERF3, "--client", host, "--port", str(port), "--json"]
        argv += ["--time", str(seconds), "--parallel", str(streams)]
        if message_size is not None:
            argv += ["--length", str(min(message_size, LARGEST_MESSAGE_BYTES))]
        output = self._cluster.directory / "client.json"
        client = self._cluster.start("client", 0, argv, stdout=output)
        self._cluster.wait([client], seconds + _SLACK_S)
        return _received_mb_per_s(output)


def _received_mb_per_s(output: Path) -> float:
    try:
        received = json.loads(output.read_text())["end"]["sum_received"]
        return float(received["bits_per_second"]) / 8e6
    except (ValueError, KeyError) as error:
        raise TensorwireError(f"unexpected output of iperf3: {error!r}") from error


LARGEST_BUFFER_BYTES = 1_000_000_000
"""A larger buffer has the same rate, because it does not fit into any cache either."""
COPIES = 4
"""The number of buffers that all ceilings together allocate."""


class CeilingSide(TaskProcesses, Side[Tensors, Any]):
    """Tasks that move one buffer; measured in one of the cases."""

    def __init__(self, name: str, at: Tensors, cluster: LocalCluster) -> None:
        super().__init__(cluster)
        self.name = name
        self._at = at
        self._size_bytes = min(round(at.data_mb * 1e6), LARGEST_BUFFER_BYTES)

    def takes_part(self, tensors: Tensors) -> bool:
        return tensors == self._at

    def wait_started(self, watcher: Watcher) -> None:
        for process in self._processes.values():
            wait_ready(self._cluster, process, watcher)

    def _steps(self, job: str, do: str, steps: int) -> list[float]:
        """Runs one warm-up step and then `steps` steps; returns the seconds of each of these."""
        for count in (1, steps):
            reply = self._ask(job, {"do": do, "iters": count})
        scale = self._at.data_mb * 1e6 / self._size_bytes
        return [seconds * scale for seconds in reply["step_s"]]

    def ceiling_mb_per_s(self, case: Case[Tensors], rounds: Rounds) -> float:
        return self._at.data_mb / statistics.typical_s(rounds)


class TcpSide(CeilingSide):
    """One raw TCP stream between two processes."""

    def __init__(self, at: Tensors, host_pool: HostPool) -> None:
        super().__init__("tcp", at, host_pool.cluster({"receiver": 1, "sender": 1}))

    def _start(self) -> None:
        for job in ("receiver", "sender"):
            self._start_task(job, TcpTask, {"message_size": self._size_bytes})

    def wait_started(self, watcher: Watcher) -> None:
        super().wait_started(watcher)
        # On another machine, the known address may not be one of its own addresses (NAT).
        host, port = split_address(self.address("receiver"))
        listens_at = host if self._cluster.is_on_this_machine else ""
        self._ask("receiver", {"do": "receive", "host": listens_at, "port": port})
        self._ask("sender", {"do": "connect", "host": host, "port": port, "streams": 1})

    def block(self, tensors: Tensors, steps: int | None) -> Sequence[float]:
        return self._steps("sender", "tcp", steps or 1)


class MemcpySide(CeilingSide):
    """Copies one buffer to another one of the same process."""

    def __init__(self, at: Tensors, host_pool: HostPool) -> None:
        super().__init__("memcpy", at, host_pool.cluster({"copier": 1}))

    def _start(self) -> None:
        self._start_task("copier", MemcpyTask, {"message_size": self._size_bytes})

    def block(self, tensors: Tensors, steps: int | None) -> Sequence[float]:
        return self._steps("copier", "memcpy", steps or 1)


class Iperf3Ceiling(Iperf3, Side[Tensors, Any]):  # type: ignore[misc]
    """iperf3; it runs for one second instead of for a number of steps."""

    name = IPERF3

    def __init__(self, at: Tensors, host_pool: HostPool) -> None:
        super().__init__(host_pool)
        self._at = at

    def takes_part(self, tensors: Tensors) -> bool:
        return tensors == self._at

    def block(self, tensors: Tensors, steps: int | None) -> Sequence[float]:
        return [tensors.data_mb / self.mb_per_s()]

    def ceiling_mb_per_s(self, case: Case[Tensors], rounds: Rounds) -> float:
        return self._at.data_mb / statistics.typical_s(rounds)


def ceiling_sides(at: Tensors, host_pool: HostPool) -> list[Side[Tensors, Result]]:
    """The ceilings that are possible on these hosts, measured in one case."""
    sides: list[Side[Tensors, Result]] = [TcpSide(at, host_pool)]
    if not host_pool.have_link:
        sides.append(MemcpySide(at, host_pool))
    elif host_pool.is_this_machine and is_installed():
        sides.append(Iperf3Ceiling(at, host_pool))
    return sides


def ceiling_pairs(
    names: Sequence[str], ceilings: Sequence[str], host_pool: HostPool
) -> list[tuple[str, str]]:
    """The pairs (side, ceiling) to compare, for the sides `names`.

    Within one machine, stock grpc is compared only if no side of tensorwire takes part.
    """
    ours = [name for name in names if name != "grpc"]
    compared = names if host_pool.have_link else ours or names
    return [(name, ceiling) for name in compared for ceiling in ceilings]
