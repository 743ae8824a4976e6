"""Starts and controls the process that forwards a lab's packets (`relay.py`)."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
from collections.abc import Sequence

from harness import relay
from tensorwire.bench.lab.network import NetworkUnavailable
from tensorwire.bench.lab.settings import HostSettings
from tensorwire.owning_context import OwningContext

_TIMEOUT_S = 20.0


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
        message = {
            "host": host,
            "loss": settings.loss,
            "delay_s": settings.delay_s,
            "late": settings.late,
            "late_s": settings.late_s,
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
