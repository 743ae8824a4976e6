"""Starts and controls the process that forwards a lab's packets (`relay.py`)."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import select
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from harness import relay
from tensorwire.bench.lab import HostSettings, Lab, LabSettings
from tensorwire.bench.lab.network import Namespaces, NetworkUnavailable, Switch
from tensorwire.errors import UsageError
from tensorwire.owning_context import OwningContext

_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class DisturbedLink(HostSettings):
    """A host of a `RelayedLab` whose packets are lost or late."""

    loss: float = 0.0
    """The share of packets that are lost in each direction."""
    late: float = 0.0
    """The share of packets that are delayed by `late_s`, so that later packets overtake them."""
    late_s: float = 0.0

    def __post_init__(self) -> None:
        """Raises UsageError for impossible values."""
        super().__post_init__()
        if not 0 <= self.loss <= 1 or not 0 <= self.late <= 1 or not 0 <= self.late_s <= 10:
            raise UsageError("packets are lost or late by shares from 0 to 1, for 10s at most")


class RelayedLab(Lab):
    """A lab whose packets all go through a process that can lose, delay and reorder them."""

    def __init__(self, settings: LabSettings) -> None:
        super().__init__(settings)
        self._relay: RelayProcess | None = None

    def _made_switch(
        self, held: contextlib.ExitStack, switch: Namespaces, hosts: Sequence[Namespaces]
    ) -> Switch:
        networks = [host.network for host in hosts]
        self._relay = held.enter_context(RelayProcess(switch.network, networks))
        return Switch(switch.network)

    def _apply_link(self, switch: Switch, index: int, settings: HostSettings) -> None:
        assert self._relay is not None
        self._relay.set(index, settings)
        super()._apply_link(switch, index, dataclasses.replace(settings, delay_s=0.0))


class RelayProcess(OwningContext):
    """A context manager: the interfaces exist within the context."""

    def __init__(self, switch: str, hosts: Sequence[str]) -> None:
        """Paths of the network namespaces of the switch and of each host."""
        self._argv = [sys.executable, "-I", "-S", relay.__file__, switch, *hosts]

    def _open(self, held: contextlib.ExitStack) -> None:
        """Raises NetworkUnavailable if the interfaces cannot be made."""
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._argv, stdin=pipe, stdout=pipe, stderr=pipe)
        held.callback(self._end)
        self._hear()

    def set(self, host: int, settings: HostSettings) -> None:
        """Sets the treatment of the packets of host number `host`, in both directions."""
        disturbed = settings if isinstance(settings, DisturbedLink) else DisturbedLink()
        message = {
            "host": host,
            "loss": disturbed.loss,
            "delay_s": settings.delay_s,
            "late": disturbed.late,
            "late_s": disturbed.late_s,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()
        self._hear()

    def _hear(self) -> None:
        assert self._process.stdout is not None and self._process.stderr is not None
        readable, _, _ = select.select([self._process.stdout], [], [], _TIMEOUT_S)
        if not readable:
            raise NetworkUnavailable(f"the lab's relay does not answer within {_TIMEOUT_S:g} s")
        if not self._process.stdout.readline():
            words = self._process.stderr.read().decode(errors="replace").splitlines()
            raise NetworkUnavailable(f"the lab's relay ended: {words[-1] if words else 'silently'}")

    def _end(self) -> None:
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()
        self._process.wait(_TIMEOUT_S)
