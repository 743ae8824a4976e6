"""The checks of a cluster: each task's gRPC port, and its data port."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tensorwire.check.finding import Finding
from tensorwire.cluster import (
    ClusterSpec,
    Task,
    data_address,
    read_endpoint_map,
    split_address,
)

_AT_ONCE = 64
_RULE = 20_000
"""The data port is so much above the gRPC port."""
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def tasks(cluster: ClusterSpec, timeout_s: float, map_path: Path) -> Iterator[Finding]:
    """Tries to connect to each task, many at a time; findings are in the cluster's order.

    Args:
        map_path: the `.endpoint_map`, which need not be there.

    Raises:
        UsageError: the map is wrong.
    """
    mapped = read_endpoint_map(map_path) if map_path.exists() else {}
    named = list(cluster.tasks())

    def check(one: tuple[Task, str]) -> list[Finding]:
        task, address = one
        if address in mapped:
            return _task(task, address, mapped[address], f"from {map_path}", timeout_s)
        return _task(task, address, data_address(address), f"its gRPC port + {_RULE}", timeout_s)

    with ThreadPoolExecutor(max_workers=min(_AT_ONCE, max(1, len(named)))) as pool:
        for found in pool.map(check, named):
            yield from found


def _task(task: Task, grpc: str, data: str, origin: str, timeout_s: float) -> list[Finding]:
    name = f"{task.job}:{task.index}"
    took_s, error = _connect(grpc, timeout_s)
    if error:
        text = f"no server at {grpc}: {error}"
        advice = "start the task, or check its address, and that its port is open between the hosts"
        return [Finding("error", name, text, advice)]
    _, error = _connect(data, timeout_s)
    if error:
        return [
            Finding(
                "error",
                name,
                f"its gRPC port {grpc} answers, but its data port {data} ({origin}) does not: "
                f"{error}",
                'start its server with protocol="grpc++", and open the port between the hosts',
            )
        ]
    text = f"{grpc} and its data port {data} answer, in {1e3 * took_s:.1f} ms"
    port = split_address(data)[1]
    first, last = _ephemeral_ports()
    if first <= port <= last:
        advice = "name a data port outside of that range in .endpoint_map"
        if first > _RULE:
            advice += f", or take a gRPC port below {first - _RULE}"
        return [
            Finding(
                "warning",
                name,
                f"{text}; Linux gives outgoing connections ports {first} to {last}, and one that "
                f"has port {port} keeps the task from starting again",
                advice,
            )
        ]
    return [Finding("ok", name, text)]


def _connect(address: str, timeout_s: float) -> tuple[float, str]:
    """Seconds that it took, and why it failed: "" if it did not."""
    began = time.monotonic()
    try:
        socket.create_connection(split_address(address), timeout_s).close()
    except TimeoutError:
        return timeout_s, f"no answer within {timeout_s:g} s"
    except OSError as error:
        return time.monotonic() - began, error.strerror or str(error)
    return time.monotonic() - began, ""


def _ephemeral_ports() -> tuple[int, int]:
    """The range from which Linux takes the ports of outgoing connections."""
    try:
        first, last = _EPHEMERAL.read_text().split()
    except (OSError, ValueError):
        return 32768, 60999
    return int(first), int(last)
