"""The layers between two hosts, from the link up to tensors, measured in less than a minute."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

import psutil

from tensorwire.bench import rpc, tcp, transfer
from tensorwire.bench.raw_processes import End, Target, remote_server, serve_remote
from tensorwire.bench.rpc import RpcResult
from tensorwire.bench.tcp import TcpResult
from tensorwire.bench.transfer import TransferResult
from tensorwire.cluster import split_address
from tensorwire.doctor.evidence import Layers, MeasuredLayer
from tensorwire.lab.channel import Message
from tensorwire.measure import remote_hosts
from tensorwire.measure.contenders import PROTOCOLS, Setting
from tensorwire.measure.host_pool import THIS_MACHINE, HostPool
from tensorwire.measure.record import Record, Result
from tensorwire.measure.remote_hosts import HostRole
from tensorwire.measure.task_processes import Watcher
from tensorwire.metrics.nic import nominal_mbit_per_s

_TCP = tcp.TcpPlan(streams=(1, 4), rounds=3)
_LARGE = rpc.RpcPlan(message_size=4 << 20, concurrency=2, rounds=3)
_SMALL = rpc.RpcPlan(message_size=64, concurrency=1, rounds=3)
_ROUNDS = 3
# Without shared memory, tensors of one machine take the same path as between two hosts.
_TENSORS = transfer.TransferPlan(20.0, 12, _ROUNDS, PROTOCOLS, Setting(transport="tcp"))
_APART = 100
_GREETING = "doctor"
STEPS = 4 * _ROUNDS
"""The approximate number of times that the watcher is advanced."""


def measure(watcher: Watcher, host_pool: HostPool = THIS_MACHINE) -> Layers:
    """Measures between two processes of this machine, or between two hosts of a lab.

    Raises:
        TensorwireError: a task failed, or did not answer in time.
    """
    records: list[Record[Result]] = [
        tcp.run(_TCP, watcher, host_pool),
        rpc.run(_LARGE, watcher, host_pool),
        rpc.run(_SMALL, watcher, host_pool),
        transfer.run(_TENSORS, watcher, host_pool),
    ]
    lab = host_pool.document
    rate = lab["rate_mbit_per_s"] if lab is not None and lab["network"] else None
    where = "two hosts of a lab" if lab is not None else "both ends on this machine"
    link = rate / 8 if isinstance(rate, (int, float)) else None
    return layers_of(records, f"measured, {where}", link)


def measure_remote(target: Target, watcher: Watcher) -> Layers:
    """Measures from this host to the host on which `serve` runs.

    Raises:
        TensorwireError: the other host did not connect in time, or an end failed.
    """
    records: list[Record[Result]] = [
        tcp.measure_remote(_TCP, target, watcher),
        rpc.measure_remote(_LARGE, target, watcher),
        rpc.measure_remote(_SMALL, target, watcher),
    ]
    own = _own_address(target)
    port = split_address(target.address)[1]
    # Not near the ps's port, because both may be on one host.
    wants = {"worker": f"{own}:{port + _APART}", "ps": target.address}
    with remote_server(_GREETING, target, wants, watcher):
        pass
    with remote_hosts.lead(_part(wants, "worker", target.peer_timeout_s), watcher) as host_pool:
        records.append(transfer.run(_TENSORS, watcher, host_pool))
    return layers_of(records, f"measured, from here to {target.address}", _link_mb_per_s(own))


def serve(port: int, peer_timeout_s: float, watcher: Watcher) -> None:
    """The other end of `measure_remote`; returns when all layers are measured.

    Raises:
        TensorwireError: no host connected in time, it left too early, or an end failed.
    """
    tcp.serve(port, peer_timeout_s, watcher)
    rpc.serve(_LARGE, port, peer_timeout_s, watcher)
    rpc.serve(_SMALL, port, peer_timeout_s, watcher)
    wanted: dict[str, str] = {}

    def start(wants: Message) -> tuple[Message, Mapping[str, End]]:
        wanted.update(wants)
        return {}, {}

    serve_remote(_GREETING, port, peer_timeout_s, start, watcher)
    remote_hosts.serve(_part(wanted, "ps", peer_timeout_s), watcher)


def _part(addresses: Mapping[str, str], job: str, peer_timeout_s: float) -> HostRole:
    hosts = {name: [addresses[name]] for name in ("ps", "worker")}
    return HostRole(_GREETING, hosts, job, 0, peer_timeout_s)


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


def _own_address(target: Target) -> str:
    """This host's address on the route to the target; sends nothing."""
    host, port = split_address(target.address)
    family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        own: str = probe.getsockname()[0]
    return f"[{own}]" if ":" in own else own


def _link_mb_per_s(own: str) -> float | None:
    """Nominal speed of the interface that has this address."""
    for interface, addresses in psutil.net_if_addrs().items():
        if own.strip("[]") in {each.address for each in addresses}:
            speed = nominal_mbit_per_s(interface)
            return None if speed is None else speed / 8
    return None
