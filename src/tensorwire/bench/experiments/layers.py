"""The layers between two hosts, from the link up to tensors, measured in less than a minute."""

from __future__ import annotations

from collections.abc import Sequence

import psutil

from tensorwire.bench.experiments import rpc, tcp, transfer
from tensorwire.bench.experiments.rpc import RpcResult
from tensorwire.bench.experiments.tcp import TcpResult
from tensorwire.bench.experiments.transfer import TransferResult
from tensorwire.bench.frame import several_hosts
from tensorwire.bench.frame.hosts import THIS_MACHINE, HostPool, link_mb_per_s, open_host_pool
from tensorwire.bench.frame.record import Record, Result
from tensorwire.bench.frame.several_hosts import HostRole
from tensorwire.bench.frame.tasks import Watcher
from tensorwire.bench.lab.settings import parse
from tensorwire.cli.options import TwoEnds
from tensorwire.cluster import split_address
from tensorwire.doctor.evidence import Layers, MeasuredLayer
from tensorwire.metrics.nic import nominal_mbit_per_s

_ROUNDS = 3
_EXPERIMENTS = (
    tcp.Tcp(streams=(1, 4), rounds=_ROUNDS),
    rpc.Rpc(message_size=4 << 20, concurrency=2, rounds=_ROUNDS),
    rpc.Rpc(message_size=64, concurrency=1, rounds=_ROUNDS),
    # Without shared memory, tensors of one machine take the same path as between two hosts.
    transfer.Transfer(data_mb=20.0, iters=12, rounds=_ROUNDS, transport="tcp"),
)
_GREETING = "doctor"
STEPS = sum(each.blocks for each in _EXPERIMENTS)
"""The number of times that the watcher is advanced."""


def measure(watcher: Watcher, hosts: HostPool = THIS_MACHINE) -> list[Record[Result]]:
    """Measures between two processes of this machine, two hosts of a lab, or two machines.

    Raises:
        TensorwireError: a task failed, or did not answer in time.
    """
    return [each.run(watcher, hosts) for each in _EXPERIMENTS]


def measure_in(lab: str | None, watcher: Watcher) -> Layers:
    """The layers in a new lab with the settings of --lab, or on this machine."""
    with open_host_pool(parse(lab) if lab else None) as hosts:
        records = measure(watcher, hosts)
        made = hosts.document
    where = "two hosts of a lab" if made is not None else "both ends on this machine"
    return _layers_of(records, f"measured, {where}", link_mb_per_s(made))


def measure_between(ends: TwoEnds, watcher: Watcher) -> Layers | None:
    """The layers from a client to its server; a server serves the client, and returns None.

    Raises:
        TensorwireError: the other host did not connect in time, or an end failed.
    """
    role = HostRole.of_ends(_GREETING, ends, needs_tensorflow=True)
    if not role.leads:
        several_hosts.serve(role, watcher)
        return None
    with several_hosts.lead(role, watcher) as hosts:
        records = measure(watcher, hosts)
    own = split_address(role.address)[0]
    return _layers_of(records, f"measured, from here to {ends.target}", _nominal_mb_per_s(own))


def _layers_of(
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


def _nominal_mb_per_s(own: str) -> float | None:
    """Nominal speed of the interface that has this address."""
    for interface, addresses in psutil.net_if_addrs().items():
        if own.strip("[]") in {each.address for each in addresses}:
            speed = nominal_mbit_per_s(interface)
            return None if speed is None else speed / 8
    return None
