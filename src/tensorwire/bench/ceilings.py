"""The ceilings of `bench transfer`: programs that move a tensor's bytes without TensorFlow.

That is one raw TCP stream and, within this machine, one memcpy of a buffer of the same size. On a
link that is slower than the machine's memory it is iperf3, where installed, in memcpy's place.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorwire.bench.raw_task import MemcpyTask, TcpTask
from tensorwire.bench.tensor_sides import Tensors
from tensorwire.cluster import split_address
from tensorwire.errors import TensorwireError
from tensorwire.lab import LocalCluster
from tensorwire.measure import statistics
from tensorwire.measure.experiment import Case, Side
from tensorwire.measure.host_pool import THIS_MACHINE, HostPool
from tensorwire.measure.record import Result
from tensorwire.measure.statistics import Rounds
from tensorwire.measure.task_processes import TaskProcesses, Watcher, wait_ready

IPERF3 = "iperf3"
LARGEST_MESSAGE_BYTES = 1 << 20
"""The largest message that these programs send or receive over TCP."""
_SLACK_S = 30.0


def version() -> str:
    """ "3.12"; "" where it is not installed."""
    if not is_installed():
        return ""
    told = subprocess.run([IPERF3, "--version"], capture_output=True, text=True, check=False)
    words = told.stdout.split()
    return words[1] if len(words) > 1 else ""


def is_installed() -> bool:
    return shutil.which(IPERF3) is not None


class Iperf3(TaskProcesses):
    """A server at one end, and a client at the other each time that it is asked for."""

    def __init__(
        self,
        host_pool: HostPool = THIS_MACHINE,
        parts: tuple[str, ...] = ("server", "client"),
        address: str = "",
    ) -> None:
        """`parts`: those of this host; `address`: of the server, where that is another's."""
        super().__init__(host_pool.cluster(dict.fromkeys(parts, 1)))
        self._parts = parts
        self._address = address or self._cluster.spec["server"][0]

    def _start(self) -> None:
        if "server" in self._parts:
            port = self._address.rpartition(":")[2]
            server = self._cluster.start("server", 0, [IPERF3, "--server", "--port", port])
            self._cluster.wait_listening([server], _SLACK_S, int(port))

    def mb_per_s(
        self, seconds: int = 1, streams: int = 1, message_size: int | None = None
    ) -> float:
        """MB (10^6 bytes) that arrived each second, over all streams."""
        host, _, port = self._address.rpartition(":")
        argv = [IPERF3, "--client", host.strip("[]"), "--port", port, "--json"]
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
"""Above this a buffer is in DRAM wholly, and the rate of a larger one is the same."""
COPIES = 4
"""Buffers of all ceilings together."""


class CeilingSide(TaskProcesses, Side[Tensors, Any]):
    """Tasks that move one buffer, at one of the cases."""

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
        """Seconds of each step of one that does not count and then `steps`."""
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
        # On another machine the address at which it is known may not be one of its own.
        host, port = split_address(self.address("receiver"))
        listens_at = host if self._cluster.is_on_this_machine else ""
        self._ask("receiver", {"do": "receive", "host": listens_at, "port": port})
        self._ask("sender", {"do": "connect", "host": host, "port": port, "streams": 1})

    def block(self, tensors: Tensors, steps: int | None) -> Sequence[float]:
        return self._steps("sender", "tcp", steps or 1)


class MemcpySide(CeilingSide):
    """A copy of one buffer to another of the same process."""

    def __init__(self, at: Tensors, host_pool: HostPool) -> None:
        super().__init__("memcpy", at, host_pool.cluster({"copier": 1}))

    def _start(self) -> None:
        self._start_task("copier", MemcpyTask, {"message_size": self._size_bytes})

    def block(self, tensors: Tensors, steps: int | None) -> Sequence[float]:
        return self._steps("copier", "memcpy", steps or 1)


class Iperf3Ceiling(Iperf3, Side[Tensors, Any]):
    """iperf3, which runs for a second instead of a number of steps."""

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
    """The ceilings that these hosts can have, to be measured at one case."""
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

    Within one machine stock grpc is compared only where nothing of ours takes part.
    """
    ours = [name for name in names if name != "grpc"]
    compared = names if host_pool.have_link else ours or names
    return [(name, ceiling) for name in compared for ceiling in ceilings]
