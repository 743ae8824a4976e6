"""Labs: hosts as network namespaces of this machine, joined by a bridge.

Each host has a link to the bridge, whose rate and delay can be changed under traffic. It has its
own names (`host0` and so on, in an /etc/hosts that only its tasks see) and, if control groups are
available, a limit of CPUs. A link can be cut.

The namespaces have no name and no path in the file system: they exist as long as a descriptor or a
process refers to them. So even if the owner is killed, nothing is left after its tasks have ended;
their LocalCluster or its cleanup process ends them. Control groups have names. They have their own
cleanup process, and the next lab removes what remains.

Without root or pyroute2, all hosts are this machine's loopback, and `notes` says so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorwire.bench.lab import cgroups, network
from tensorwire.bench.lab.cgroups import CpuGroup
from tensorwire.bench.lab.cleanup import CleanupProcess
from tensorwire.bench.lab.network import Namespaces, NetworkUnavailable, Switch
from tensorwire.bench.lab.settings import HostSettings, LabSettings
from tensorwire.errors import TensorwireError
from tensorwire.owning_context import OwningContext

# BBR, the default on some machines, probes for the rate and often stays far below it on such short
# links. Every kernel lets a namespace choose "reno"; without loss it is good enough.
_CONGESTION_CONTROL = "reno"

_NAMES = "names"
"""The key of the note that host names do not resolve."""


@dataclass(frozen=True)
class Host:
    """A place for tasks, and its address for other tasks."""

    address: str
    name: str = "localhost"
    network: str | None = None
    """Path of its network namespace; None: it uses this process's."""
    namespaces: tuple[str, ...] = ()
    """All its namespaces, as options of nsenter(1)."""
    cgroup: Path | None = None
    port: int | None = None
    """Port of its one task; None: any free port."""
    is_this_machine: bool = True
    """True if it has this machine's files, as the hosts of a lab do."""

    def command(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` on this host."""
        if not self.namespaces and self.cgroup is None:
            return list(argv)
        enter = shlex.join(["nsenter", *self.namespaces, "env"])
        # Entering a mount namespace changes the working directory to its root.
        script = f'exec {enter} --chdir="$PWD" "$@"'
        if self.cgroup is not None:
            script = f"echo $$ > {shlex.quote(str(self.cgroup / 'cgroup.procs'))} && {script}"
        return ["sh", "-c", script, self.name, *argv]

    def received_bytes(self) -> int | None:
        """Bytes that this host has received over its link; None if it has no link of a lab."""
        return None if self.network is None else network.received_bytes(self.network)


LOOPBACK = Host("127.0.0.1")


class Lab(OwningContext):
    """Hosts and the network between them. A context manager that removes everything at its end."""

    def __init__(
        self,
        settings: LabSettings,
        *,
        change_cpus: bool = False,
    ) -> None:
        """Prepares the lab; hosts are made on entering it.

        Args:
            change_cpus: True if CPU limits will be set later, although `settings` has none.
        """
        self._settings = list(settings.hosts)
        self._want_groups = change_cpus or any(host.cpus is not None for host in settings.hosts)
        self._switch: Switch | None = None
        self._cut: set[int] = set()
        self._groups: list[CpuGroup] = []
        self._notes: dict[str, str] = {}
        self.hosts: tuple[Host, ...] = ()

    def _open(self, held: contextlib.ExitStack) -> None:
        cgroups.sweep()
        if self._want_groups:
            self._make_groups(held)
        try:
            self._make_hosts(held)
        except NetworkUnavailable as error:
            self._switch = None
            self.hosts = (LOOPBACK,) * len(self._settings)
            self._notes["network"] = (
                "the lab's hosts are plain processes on this machine's loopback, and rate and "
                f"delay are not applied: {error}"
            )
        if self._groups:
            self.hosts = tuple(
                dataclasses.replace(host, cgroup=group.path)
                for host, group in zip(self.hosts, self._groups, strict=True)
            )
        for index in range(len(self.hosts)):
            self._apply(index)

    @property
    def has_network(self) -> bool:
        """True if a network connects the hosts, and not only this machine's loopback."""
        return self._switch is not None

    @property
    def settings(self) -> LabSettings:
        """The current settings."""
        return LabSettings(tuple(self._settings))

    @property
    def notes(self) -> list[str]:
        """A sentence for each setting that could not be applied, for the user."""
        return list(self._notes.values())

    @property
    def unmet(self) -> list[str]:
        """The `notes` about links and CPUs, which change the meaning of a measurement."""
        return [note for about, note in self._notes.items() if about != _NAMES]

    def set(self, index: int, settings: HostSettings) -> None:
        """Changes host `index`, also while its tasks run; packets in flight are not lost.

        `notes` names what this machine cannot apply.
        """
        self._settings[index] = settings
        self._apply(index)

    def _apply(self, index: int) -> None:
        settings = self._settings[index]
        if self._switch is not None:
            self._apply_link(self._switch, index, settings)
        if self._groups:
            self._groups[index].set(settings.cpus)
        elif settings.cpus is not None:
            self._notes.setdefault("cpus", "the share of CPUs is not applied: no control groups")

    def _apply_link(self, switch: Switch, index: int, settings: HostSettings) -> None:
        if settings.is_cut != (index in self._cut):
            switch.plug(index, not settings.is_cut)
            self._cut ^= {index}
        try:
            switch.shape(index, settings.rate_bits_per_s, settings.delay_s)
        except NetworkUnavailable as error:
            self._notes["rate"] = f"rate and delay of the links are not applied: {error}"
        if settings.delay_s and not switch.has_delay:
            self._notes["delay"] = (
                "the delay is not applied: this kernel has no netem, which delays packets"
            )

    def _make_groups(self, stack: contextlib.ExitStack) -> None:
        paths = cgroups.paths(len(self._settings))
        # Started first and dismissed last; it also handles groups that do not exist yet.
        stack.callback(CleanupProcess(cgroups=paths).dismiss)
        try:
            for path in paths:
                group = CpuGroup(path)
                stack.callback(group.remove)
                self._groups.append(group)
        except TensorwireError as error:
            self._groups = []
            self._notes["cpus"] = f"the share of CPUs is not applied: {error}"

    def _make_hosts(self, stack: contextlib.ExitStack) -> None:
        network.check_available()
        addresses = network.addresses(len(self._settings))
        names = [f"host{index}" for index in range(len(self._settings))]
        lines = [Path("/etc/hosts").read_text(errors="replace").rstrip("\n")]
        lines += [f"{address} {name}" for address, name in zip(addresses, names, strict=True)]
        with tempfile.NamedTemporaryFile("w", prefix="hosts-") as hosts_file:
            hosts_file.write("\n".join(lines) + "\n")
            hosts_file.flush()
            os.fchmod(hosts_file.fileno(), 0o644)
            made = []
            for name in (*names, "switch"):
                made.append(Namespaces(name, Path(hosts_file.name), _CONGESTION_CONTROL))
                stack.callback(made[-1].close)
        *of_hosts, of_switch = made
        self._switch = self._made_switch(stack, of_switch, of_hosts)
        for address, namespaces in zip(addresses, of_hosts, strict=True):
            self._switch.join(namespaces.network, address)
            if namespaces.unresolved is not None:
                self._notes[_NAMES] = (
                    f"the names of the lab's hosts do not resolve: {namespaces.unresolved}"
                )
        self.hosts = tuple(
            Host(address, name, namespaces.network, namespaces.options)
            for address, name, namespaces in zip(addresses, names, of_hosts, strict=True)
        )

    def _made_switch(
        self, held: contextlib.ExitStack, switch: Namespaces, hosts: Sequence[Namespaces]
    ) -> Switch:
        """Makes the switch, and a link from it to each host."""
        made = Switch(switch.network)
        for index, host in enumerate(hosts):
            made.link(index, host.network_descriptor)
        return made
