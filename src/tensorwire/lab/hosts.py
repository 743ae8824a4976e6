"""Hosts in a box: network namespaces of this machine, joined by a link of a chosen rate.

A namespace made here has no name and no place in the file system: it lives as long as a descriptor
or a process refers to it. So whatever becomes of the process that made it, nothing stays behind
once its tasks are gone, and those are ended by their LocalCluster and its guard.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tensorwire.errors import TensorwireError

_INTERFACE = "link0"
# Addresses that RFC 2544 sets aside for benchmarks; each pair of hosts has a network to itself.
_ADDRESSES = ("198.18.0.1", "198.18.0.2")
_PREFIX_LENGTH = 30
# What the link may send at once after a pause: small against a tensor, large against the time it
# takes to wake the machine's timer.
_BURST_BYTES = 256 << 10
_QUANTUM_BYTES = 60_000
_HIGHEST_GBIT_PER_S = 32.0  # the kernel's interface has 32 bits for bytes a second
_ROOT, _CLASS = 0x10000, 0x10001
# BBR, a default on some machines, measures its way to the rate and is often far below it on a link
# this short. "reno" is what every kernel lets a namespace choose; there is no loss to recover from.
_CONGESTION_CONTROL = "reno"


@dataclass(frozen=True)
class Host:
    """Where a task runs, and the address at which others find it."""

    address: str
    namespace: str | None = None
    """Path of its network namespace; None is this process's own."""

    def command(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` on this host."""
        return [*(["nsenter", f"--net={self.namespace}"] if self.namespace else []), *argv]

    def received_bytes(self) -> int:
        """Bytes that came to this host over its link so far."""
        with _control(self.namespace) as control:
            (link,) = control.get_links(_index(control, _INTERFACE))
            return int(link.get_nested("IFLA_STATS64", "rx_bytes"))


LOOPBACK = Host("127.0.0.1")


@contextlib.contextmanager
def two_hosts(gbit_per_s: float) -> Iterator[tuple[Host, Host]]:
    """Two hosts, and a link between them that carries `gbit_per_s` in each direction.

    Raises:
        TensorwireError: this machine or this user cannot make them.
    """
    if not 0 < gbit_per_s <= _HIGHEST_GBIT_PER_S:
        raise TensorwireError(
            f"a link of {gbit_per_s:g} Gbit/s: give a rate up to {_HIGHEST_GBIT_PER_S:g}"
        )
    with contextlib.ExitStack() as stack:
        descriptors = []
        for _ in _ADDRESSES:
            descriptors.append(_new_namespace())
            stack.callback(os.close, descriptors[-1])
        hosts = tuple(
            Host(address, f"/proc/{os.getpid()}/fd/{descriptor}")
            for address, descriptor in zip(_ADDRESSES, descriptors, strict=True)
        )
        with _control(hosts[0].namespace) as control:
            peer = {"ifname": _INTERFACE, "net_ns_fd": descriptors[1]}
            control.link("add", ifname=_INTERFACE, kind="veth", peer=peer)
        for host in hosts:
            _configure(host, gbit_per_s)
        yield hosts[0], hosts[1]


def _new_namespace() -> int:
    """A descriptor that holds a new network namespace."""
    for tool in ("unshare", "nsenter"):
        if shutil.which(tool) is None:
            raise TensorwireError(f"{tool} is not installed: install util-linux")
    enter = f"echo {_CONGESTION_CONTROL} >/proc/sys/net/ipv4/tcp_congestion_control && exec cat"
    with subprocess.Popen(
        ["unshare", "--net", "sh", "-c", enter],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as holder:
        assert holder.stdin is not None and holder.stdout is not None and holder.stderr is not None
        with contextlib.suppress(BrokenPipeError):
            holder.stdin.write(b"\n")
            holder.stdin.flush()
        if not holder.stdout.readline():  # what `cat` gives back: it is in its namespace now
            reason = holder.stderr.read().decode(errors="replace").strip()
            raise TensorwireError(f"cannot make a network namespace, which takes root: {reason}")
        return os.open(f"/proc/{holder.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _control(namespace: str | None) -> Any:
    """pyroute2's view of a namespace; a context manager."""
    try:
        from pyroute2 import NetNS
    except ImportError as error:
        raise TensorwireError(
            f"hosts in a box need pyroute2 ({error}): pip install 'tensorwire[lab]'"
        ) from error
    return NetNS(namespace, flags=0)


def _index(control: Any, interface: str) -> int:
    return int(control.link_lookup(ifname=interface)[0])


def _configure(host: Host, gbit_per_s: float) -> None:
    bytes_per_s = round(gbit_per_s * 1e9 / 8)
    with _control(host.namespace) as control:
        control.link("set", index=_index(control, "lo"), state="up")
        index = _index(control, _INTERFACE)
        control.addr("add", index=index, address=host.address, prefixlen=_PREFIX_LENGTH)
        control.link("set", index=index, state="up")
        control.tc("add", "htb", index, _ROOT, default=_CLASS)
        control.tc(
            "add-class",
            "htb",
            index,
            _CLASS,
            parent=_ROOT,
            rate=bytes_per_s,
            ceil=bytes_per_s,
            burst=_BURST_BYTES,
            cburst=_BURST_BYTES,
            quantum=_QUANTUM_BYTES,
        )
