"""`bench transfer` over a link of a known rate, with what iperf3 gets from the same link beside it.

Ps and worker are on hosts of their own (`lab.hosts`). How near the protocols come to iperf3 tells
what they leave of a network that is slower than the machine's memory.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import dataclass

from tensorwire.bench import stats
from tensorwire.bench.noise import NoiseWatch
from tensorwire.bench.record import Record, TransferResult
from tensorwire.bench.sides import (
    PAIRS,
    PROTOCOLS,
    ClusterProcesses,
    Contender,
    ProtocolSide,
    Setting,
    Watcher,
    compare,
    contenders,
)
from tensorwire.bench.transfer import check_data_mb, check_grpc_limit, large_tensor
from tensorwire.errors import TensorwireError
from tensorwire.lab import Host, LocalCluster, two_hosts

COMMAND = "benchmarks/link"
IPERF3 = "iperf3"
_IPERF3_S = 2
_IPERF3_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class LinkPlan:
    """`iters` steps are measured for each protocol, over all rounds. MB are 10^6 bytes."""

    gbit_per_s: float = 10.0
    data_mb: float = 100.0
    iters: int = 60
    rounds: int = 10
    protocols: tuple[str, ...] = PROTOCOLS

    def __post_init__(self) -> None:
        """Raises UsageError for what cannot be measured."""
        check_data_mb(self.data_mb)
        check_grpc_limit(self.data_mb, self.protocols)

    @property
    def contenders(self) -> tuple[Contender, ...]:
        # Both hosts share this machine's memory, which is not what is to be measured.
        return contenders(self.protocols, Setting(transport="tcp"))


def run(plan: LinkPlan, watcher: Watcher) -> Record[TransferResult]:
    """Measures; `watcher.advance` is called `len(split(iters, rounds))` times.

    Raises:
        TensorwireError: there is no iperf3, hosts cannot be made here, or a task failed.
    """
    if shutil.which(IPERF3) is None:
        raise TensorwireError("iperf3 is not installed: apt-get install iperf3")
    noise = NoiseWatch()
    tensors = large_tensor(plan.data_mb)
    rounds: dict[str, list[list[float]]] = {each.name: [] for each in plan.contenders}
    rounds[IPERF3] = []
    cpu_s = dict.fromkeys(rounds, 0.0)
    with contextlib.ExitStack() as stack:
        watcher.activity("starting the tasks")
        ps_host, worker_host = stack.enter_context(two_hosts(plan.gbit_per_s))
        hosts = {"ps": ps_host, "worker": worker_host}
        sides = [stack.enter_context(ProtocolSide(each, hosts)) for each in plan.contenders]
        iperf3 = stack.enter_context(_Iperf3(server=ps_host, client=worker_host))
        for side in sides:
            side.wait_started(watcher)
        watcher.activity("warming up")
        for side in sides:
            side.build(tensors)
            side.block(tensors, iters=1, warm_up=2)
        watcher.activity("measuring")
        for iters in stats.split(plan.iters, plan.rounds):
            for side in sides:
                received_bytes = ps_host.received_bytes()
                block = side.block(tensors, iters)
                if ps_host.received_bytes() - received_bytes < iters * plan.data_mb * 1e6:
                    raise TensorwireError(
                        f"{side.name} did not use the link: its figures mean nothing"
                    )
                rounds[side.name].append(block.step_s)
                cpu_s[side.name] += block.cpu_s
            rounds[IPERF3].append([plan.data_mb / iperf3.mb_per_s()])
            watcher.advance()
        for side in sides:
            side.verify(tensors)
        tensorflow = sides[0].tensorflow
    results = [
        TransferResult(
            protocol=each.protocol,
            tensor_fuse=each.setting.tensor_fuse,
            data_mb=plan.data_mb,
            tensors=1,
            iters=plan.iters,
            mb_per_s=plan.data_mb / stats.typical_s(rounds[each.name]),
            step_ms=stats.step_ms(rounds[each.name]),
            cpu_s_per_gb=cpu_s[each.name] / (plan.iters * plan.data_mb / 1e3),
        )
        for each in plan.contenders
    ]
    pairs = [*PAIRS, *((name, IPERF3) for name in reversed(plan.protocols))]
    return Record(
        COMMAND,
        tensorflow,
        results,
        ratios=compare(rounds, pairs),
        ceilings={IPERF3: plan.data_mb / stats.typical_s(rounds[IPERF3])},
        noise=noise.seen(rounds),
    )


class _Iperf3(ClusterProcesses):
    """An iperf3 server on one host, and clients on the other."""

    def __init__(self, server: Host, client: Host) -> None:
        super().__init__(
            LocalCluster({"server": 1, "client": 1}, {"server": server, "client": client})
        )
        self._address, _, self._port = self._cluster.spec["server"][0].rpartition(":")

    def _start(self) -> None:
        self._cluster.start("server", 0, [IPERF3, "--server", "--port", self._port])

    def mb_per_s(self) -> float:
        """What arrived, over two seconds of one stream."""
        output = self._cluster.directory / "client.json"
        argv = [IPERF3, "--client", self._address, "--port", self._port, "--json"]
        client = self._cluster.start("client", 0, [*argv, "--time", str(_IPERF3_S)], stdout=output)
        self._cluster.wait([client], _IPERF3_TIMEOUT_S)
        received = json.loads(output.read_text())["end"]["sum_received"]
        return float(received["bits_per_second"]) / 8e6
