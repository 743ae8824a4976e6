"""A lab with nodes: the hosts of a node, like the pods of one, share the node's link."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tensorwire.bench.lab import Host, HostSettings, Lab, LabSettings
from tensorwire.bench.lab.network import (
    BRIDGE,
    Namespaces,
    Switch,
    control_of,
    interface_index,
    or_unavailable,
)

Result = TypeVar("Result")


class NodeLab(Lab):
    """A lab whose first host is by itself, and whose others are on nodes."""

    def __init__(self, nodes: Sequence[int], link: HostSettings, *, change_cpus: bool) -> None:
        """`nodes`: the number of hosts of each; `link`: of each node."""
        self._node_of = [node for node, hosts in enumerate(nodes) for _ in range(hosts)]
        self._link = link
        alike = LabSettings.alike(1 + len(self._node_of), HostSettings())
        super().__init__(alike, change_cpus=change_cpus)

    def _made_switch(
        self, held: contextlib.ExitStack, switch: Namespaces, hosts: Sequence[Namespaces]
    ) -> Switch:
        made = _NodeSwitch(switch.network, self._node_of)
        for node in sorted(set(self._node_of)):
            made.add_node(node, self._link)
        for index, host in enumerate(hosts):
            made.link(index, host.network_descriptor)
        return made


class _NodeSwitch(Switch):
    """Hosts of a node are linked to the node's bridge, which is linked to the main bridge."""

    def __init__(self, namespace: str, node_of: Sequence[int]) -> None:
        super().__init__(namespace)
        self._node_of = node_of

    def add_node(self, node: int, link: HostSettings) -> None:
        """Makes the bridge of a node, and its link.

        Raises:
            NetworkUnavailable: the kernel refuses.
        """
        self._add_bridge(f"node{node}")
        up, down = f"up{node}", f"down{node}"
        with control_of(self._namespace) as control, or_unavailable("virtual interfaces"):
            control.link("add", ifname=up, kind="veth", peer={"ifname": down})
            for port, bridge in ((up, f"node{node}"), (down, BRIDGE)):
                master = interface_index(control, bridge)
                control.link("set", index=interface_index(control, port), master=master, state="up")
        self._shape(self._namespace, up, link.rate_bits_per_s, link.delay_s)
        self._shape(self._namespace, down, link.rate_bits_per_s, 0.0)

    def _bridge_of(self, host: int) -> str:
        return f"node{self._node_of[host - 1]}" if host else BRIDGE


def inside(host: Host, work: Callable[[], Result]) -> Result:
    """Runs `work`, and threads that it starts, on this host's network; returns its result.

    Raises what `work` raises.
    """
    from pyroute2 import netns

    def enter_first() -> Result:
        assert host.network is not None
        netns.setns(host.network, flags=0)
        return work()

    # In a temporary thread, so that the current thread keeps its network.
    with ThreadPoolExecutor(1) as there:
        return there.submit(enter_first).result()
