"""The layers between two hosts, from the link up to tensors, measured in less than a minute."""

from __future__ import annotations

from collections.abc import Sequence

import psutil

from tensorwire.bench.experiments import rpc, tcp, transfer
from tensorwire.bench.experiments.rpc import RpcResult
from tensorwire.bench.experiments.tcp import TcpResult
from tensorwire.bench.experiments.transfer import TransferResult
from tensorwire.bench.frame import remote_hosts
from tensorwire.bench.frame.contenders import PROTOCOLS, Setting
from tensorwire.bench.frame.host_pool import THIS_MACHINE, HostPool, open_host_pool
from tensorwire.bench.frame.record import Record, Result
from tensorwire.bench.frame.remote_hosts import HostRole
from tensorwire.bench.frame.task_processes import Watcher
from tensorwire.bench.lab.settings import parse
from tensorwire.cli.two_ends import TwoEnds
from tensorwire.cluster import split_address
from tensorwire.doctor.evidence import Layers, MeasuredLayer
from tensorwire.metrics.nic import nominal_mbit_per_s

_TCP = tcp.TcpPlan(streams=(1, 4), rounds=3)
_LARGE = rpc.RpcPlan(message_size=4 << 20, concurrency=2, rounds=3)
_SMALL = rpc.RpcPlan(message_size=64, concurrency=1, rounds=3)
_ROUNDS = 3
# Without shared memory, tensors of one machine take the same path as between two hosts.
_TENSORS = transfer.TransferPlan(20.0, 12, _ROUNDS, PROTOCOLS, Setting(transport="tcp"))
_GREETING = "doctor"
STEPS = 4 * _ROUNDS
"""The approximate number of times that the watcher is advanced."""


def measure(watcher: Watcher, host_pool: HostPool = THIS_MACHINE) -> list[Record[Result]]:
    """Measures between two processes of this machine, two hosts of a lab, or two machines.

    Raises:
        TensorwireError: a task failed, or did not answer in time.
    """
    return [
        tcp.run(_TCP, watcher, host_pool),
        rpc.run(_LARGE, watcher, host_pool),
        rpc.run(_SMALL, watcher, host_pool),
        transfer.run(_TENSORS, watcher, host_pool),
    ]


def measure_in(lab: str | None, watcher: Watcher) -> Layers:
    """The layers in a new lab with the settings of --lab, or on this machine."""
    with open_host_pool(parse(lab) if lab else None) as host_pool:
        records = measure(watcher, host_pool)
        made = host_pool.document
    rate = made["rate_mbit_per_s"] if made is not None and made["network"] else None
    where = "two hosts of a lab" if made is not None else "both ends on this machine"
    link = rate / 8 if isinstance(rate, (int, float)) else None
    return layers_of(records, f"measured, {where}", link)


def measure_between(ends: TwoEnds, watcher: Watcher) -> Layers | None:
    """The layers from a client to its server; a server serves the client, and returns None.

    Raises:
        TensorwireError: the other host did not connect in time, or an end failed.
    """
    role = HostRole.of_ends(_GREETING, ends, needs_tensorflow=True)
    if not role.leads:
        remote_hosts.serve(role, watcher)
        return None
    with remote_hosts.lead(role, watcher) as host_pool:
        records = measure(watcher, host_pool)
    own = split_address(role.address)[0]
    return layers_of(records, f"measured, from here to {ends.target}", _link_mb_per_s(own))


def layers_of(
    records: Sequence[Record[Result]], source: str, link_mb_per_s: float | None = None
) -> Layers:
    """The rate of each layer in the records; the fastest one over several sizes or streams."""
    rates: dict[tuple[str, str | None], float] = {}
    latencies: dict[str, float] = {}
    if link_mb_per_s is not None:
        rates["link", None] = link_mb_per_s
    for result in (each for record in records for each in record.results):
        match result:
            case TcpResult(implementation=tcp.OURS):
                key: tuple[str, str | None] = ("tcp", None)
            case RpcResult():
                key = ("rpc", result.protocol)
                if result.latency_us is not None:
                    shortest = latencies.get(result.protocol, result.latency_us.p50)
                    latencies[result.protocol] = min(shortest, result.latency_us.p50)
            case TransferResult(tensor_fuse=False):
                key = ("tensor", result.protocol)
            case _:
                continue
        rates[key] = max(rates.get(key, 0.0), result.mb_per_s)
    return Layers(
        source=source,
        measured=tuple(
            MeasuredLayer(
                name, protocol, rate, latencies.get(protocol or "") if name == "rpc" else None
            )
            for (name, protocol), rate in rates.items()
        ),
    )


def _link_mb_per_s(own: str) -> float | None:
    """Nominal speed of the interface that has this address."""
    for interface, addresses in psutil.net_if_addrs().items():
        if own.strip("[]") in {each.address for each in addresses}:
            speed = nominal_mbit_per_s(interface)
            return None if speed is None else speed / 8
    return None
