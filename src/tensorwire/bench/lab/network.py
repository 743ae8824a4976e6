"""The namespaces of a lab's hosts (util-linux), and the links between them (pyroute2)."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from tensorwire.bench.lab.settings import HIGHEST_BITS_PER_S
from tensorwire.errors import TensorwireError
from tensorwire.plan.cluster import LAB_BURST_BYTES

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LINK = "link0"
BRIDGE = "bridge0"
# Addresses that RFC 2544 reserves for benchmarks. Each lab has its own network.
_NETWORK = ipaddress.ip_network("198.18.0.0/24")
# A link's burst: small compared with a tensor, but enough to bridge the timer's wake-up latency.
_QUANTUM_BYTES = 60_000
_ROOT, _CLASS, _DELAY = 0x10000, 0x10001, 0x20000
# Queue of a delayed link: more than 10 Gbit/s send in 0.1 s, even in packets of 1500 bytes.
_DELAYED_PACKETS = 100_000


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Delays an exception that would end this process until the end of the block.

    Use it only briefly, around code that forks or runs callbacks that swallow exceptions.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python raises signal exceptions in the main thread only
        return
    owner = os.getpid()
    heard: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        if os.getpid() == owner:
            heard.append(number)
        elif number != signal.SIGINT:  # in a fork; a Ctrl-C at the terminal is for its owner
            os._exit(128 + number)

    handlers = {number: signal.getsignal(number) for number in _ENDING}
    ours = {number: handler for number, handler in handlers.items() if callable(handler)}
    try:
        for number in ours:
            signal.signal(number, hear)
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
        if heard:
            signal.raise_signal(heard[0])


class NetworkUnavailable(TensorwireError):
    """This machine or this user cannot make network namespaces or their links."""


# The namespaces live as long as this process, which ends with its input.
_MAKE = """
echo "$0" > /proc/sys/kernel/hostname || exit
echo "$1" > /proc/sys/net/ipv4/tcp_congestion_control || exit
echo made
mount --bind "$2" /etc/hosts && echo named
read end
"""
_KINDS = {"net": "net", "uts": "uts", "mount": "mnt"}
"""Names of the namespaces: for unshare(1) and nsenter(1), and in /proc/PID/ns."""


class Namespaces:
    """The namespaces of one host: network, host name, and mounts (its own /etc/hosts).

    Their descriptors keep them alive until `close`.
    """

    def __init__(self, hostname: str, hosts_file: Path, congestion_control: str) -> None:
        """Makes the namespaces. `hosts_file` may be removed afterwards.

        Raises:
            NetworkUnavailable: the user or the kernel does not allow it.
        """
        self._descriptors: dict[str, int] = {}
        self.unresolved: str | None = None
        """Why host names do not resolve; None if they do."""
        unshare = ["unshare", "--propagation=slave", *(f"--{kind}" for kind in _KINDS)]
        pipe = subprocess.PIPE
        try:
            maker = subprocess.Popen(
                [*unshare, "sh", "-c", _MAKE, hostname, congestion_control, str(hosts_file)],
                stdin=pipe,
                stdout=pipe,
                stderr=subprocess.STDOUT,
                text=True,
            )
        except OSError as error:
            raise NetworkUnavailable(f"no network namespace can be made: {error}") from error
        with maker:
            # No timeout is needed: the process makes a few system calls, and answers or dies.
            assert maker.stdout is not None
            if (said := maker.stdout.readline().strip()) != "made":
                raise NetworkUnavailable(f"no network namespace can be made here: {said}")
            if (said := maker.stdout.readline().strip()) != "named":
                self.unresolved = said
            for kind, name in _KINDS.items():
                path = f"/proc/{maker.pid}/ns/{name}"
                self._descriptors[kind] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def network_descriptor(self) -> int:
        return self._descriptors["net"]

    @property
    def network(self) -> str:
        """A path by which this and other processes can open the network namespace."""
        return self._path("net")

    @property
    def options(self) -> tuple[str, ...]:
        """The options of nsenter(1) by which another process enters the namespaces."""
        return tuple(f"--{kind}={self._path(kind)}" for kind in self._descriptors)

    def _path(self, kind: str) -> str:
        return f"/proc/{os.getpid()}/fd/{self._descriptors[kind]}"

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])


def check_available() -> None:
    """Raises NetworkUnavailable if pyroute2 is missing."""
    try:
        with held_back():
            import pyroute2  # noqa: F401
    except ImportError as error:
        raise NetworkUnavailable("pyroute2 is missing: pip install 'tensorwire[bench]'") from error


def addresses(hosts: int) -> list[str]:
    """An address for each host."""
    every = _NETWORK.hosts()
    return [str(next(every)) for _ in range(hosts)]


def received_bytes(namespace: str) -> int:
    """Bytes that the host with this network namespace has received over its link."""
    with control_of(namespace) as control:
        (link,) = control.get_links(interface_index(control, _LINK))
        return int(link.get_nested("IFLA_STATS64", "rx_bytes"))


class Switch:
    """A bridge in a namespace of its own, and a link from it to each host that has joined.

    A link is a pair of virtual interfaces. Both ends have the rate; the host's end also has the
    delay.
    """

    def __init__(self, namespace: str) -> None:
        """Raises NetworkUnavailable if the kernel has no bridges."""
        self._namespace = namespace
        self._hosts: list[str] = []
        self._shaped: set[tuple[str, str]] = set()
        self._delayed: set[tuple[str, str]] = set()
        self.has_delay = True
        """False once the kernel has refused to delay packets."""
        self._add_bridge(BRIDGE)

    def _add_bridge(self, name: str) -> None:
        with control_of(self._namespace) as control, or_unavailable("bridge"):
            control.link("add", ifname=name, kind="bridge")
            control.link("set", index=interface_index(control, name), state="up")

    def link(self, host: int, descriptor: int) -> None:
        """Makes the interfaces of a host, whose network namespace is open as `descriptor`."""
        with control_of(self._namespace) as control, or_unavailable("virtual interfaces"):
            peer = {"ifname": _LINK, "net_ns_fd": descriptor}
            control.link("add", ifname=f"host{host}", kind="veth", peer=peer)

    def join(self, namespace: str, address: str) -> None:
        """Connects the next host, with the network namespace `namespace`, and its interfaces."""
        with control_of(self._namespace) as control, or_unavailable("virtual interfaces"):
            port = interface_index(control, f"host{len(self._hosts)}")
            bridge = interface_index(control, self._bridge_of(len(self._hosts)))
            control.link("set", index=port, master=bridge, state="up")
        with control_of(namespace) as control:
            control.link("set", index=interface_index(control, "lo"), state="up")
            index = interface_index(control, _LINK)
            control.addr("add", index=index, address=address, prefixlen=_NETWORK.prefixlen)
            control.link("set", index=index, state="up")
        self._hosts.append(namespace)

    def _bridge_of(self, host: int) -> str:
        return BRIDGE

    def plug(self, host: int, is_in: bool) -> None:
        """Removes the link of host number `host` from the bridge, or puts it back.

        Both interfaces stay up, so neither end is notified.
        """
        with control_of(self._namespace) as control:
            bridge = interface_index(control, BRIDGE) if is_in else 0
            control.link("set", index=interface_index(control, f"host{host}"), master=bridge)

    def shape(self, host: int, rate_bits_per_s: float | None, delay_s: float) -> None:
        """Sets rate and delay of the link of host number `host`; queued packets are kept.

        Raises:
            TensorwireError: the kernel lacks the queueing discipline, or refuses.
        """
        self._shape(self._namespace, f"host{host}", rate_bits_per_s, 0.0)
        self._shape(self._hosts[host], _LINK, rate_bits_per_s, delay_s)

    def _shape(
        self, namespace: str, interface: str, rate_bits_per_s: float | None, delay_s: float
    ) -> None:
        shaped = (namespace, interface) in self._shaped
        if rate_bits_per_s is None and not delay_s and not shaped:
            return
        bytes_per_s = round((rate_bits_per_s or HIGHEST_BITS_PER_S) / 8)
        rate = {
            "parent": _ROOT,
            "rate": bytes_per_s,
            "ceil": bytes_per_s,
            "burst": LAB_BURST_BYTES,
            "cburst": LAB_BURST_BYTES,
            "quantum": _QUANTUM_BYTES,
        }
        with control_of(namespace) as control:
            index = interface_index(control, interface)
            with or_unavailable("a rate"):
                if not shaped:
                    control.tc("add", "htb", index, _ROOT, default=_CLASS)
                    self._shaped.add((namespace, interface))
                control.tc("change-class" if shaped else "add-class", "htb", index, _CLASS, **rate)
            if delay_s or (namespace, interface) in self._delayed:
                self._delay(control, namespace, interface, delay_s)

    def _delay(self, control: Any, namespace: str, interface: str, delay_s: float) -> None:
        from pyroute2.netlink.exceptions import NetlinkError

        place = (namespace, interface)
        command = "change" if place in self._delayed else "add"
        how = {"delay": round(delay_s * 1e6), "limit": _DELAYED_PACKETS}
        try:
            index = interface_index(control, interface)
            control.tc(command, "netem", index, _DELAY, parent=_CLASS, **how)
            self._delayed.add(place)
        except NetlinkError as error:
            if error.code != errno.ENOENT:  # ENOENT: no such queueing discipline
                raise
            self.has_delay = False


@contextlib.contextmanager
def or_unavailable(what: str) -> Iterator[None]:
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        yield
    except NetlinkError as error:
        raise NetworkUnavailable(f"the kernel refuses {what}: {error}") from error


@contextlib.contextmanager
def control_of(namespace: str) -> Iterator[Any]:
    """pyroute2's handle of a network namespace. pyroute2 forks and has an event loop."""
    from pyroute2 import NetNS

    with held_back(), NetNS(namespace, flags=0) as control:
        yield control


def interface_index(control: Any, interface: str) -> int:
    return int(control.link_lookup(ifname=interface)[0])
