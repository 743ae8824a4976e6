"""The namespaces of one host: network, host name, and mounts (its own /etc/hosts)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import TracebackType

from tensorwire.bench.lab import unshare
from tensorwire.bench.lab.network import NetworkUnavailable

_TIMEOUT_S = 20.0


class Namespaces:
    """Descriptors that keep the namespaces of one host alive, until `close`."""

    def __init__(self, maker: int, unresolved: str | None) -> None:
        """Opens the namespaces of the process `maker`, which may end afterwards."""
        self.unresolved = unresolved
        """Why host names do not resolve; None if they do."""
        self.descriptors: list[int] = []
        try:
            for kind in unshare.KINDS:
                path = f"/proc/{maker}/ns/{kind}"
                self.descriptors.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except BaseException:
            self.close()
            raise

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths by which another process can enter the namespaces, the network's first."""
        return tuple(f"/proc/{os.getpid()}/fd/{descriptor}" for descriptor in self.descriptors)

    def close(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.pop())


class NamespaceMaker:
    """The process that makes the namespaces of a host. A context manager that ends the process.

    All makers of a lab are started before the first is used, because starting a process is slow.
    """

    def __init__(self, hostname: str, hosts_file: str, congestion_control: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", unshare.__file__, hostname, congestion_control],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._hosts_file = hosts_file

    def __enter__(self) -> NamespaceMaker:
        return self

    def make(self) -> Namespaces:
        """Makes the namespaces. Raises NetworkUnavailable if the user or the kernel does not allow
        it.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(self._hosts_file.encode() + b"\0")
            self._process.stdin.flush()
            # No timeout is needed: the process makes a few system calls, and answers or dies.
            answer = json.loads(self._process.stdout.readline())
        except (OSError, ValueError) as error:
            raise NetworkUnavailable(f"no network namespace can be made: {error}") from error
        if "error" in answer:
            raise NetworkUnavailable(f"no network namespace can be made here: {answer['error']}")
        names = answer["names"]
        return Namespaces(self._process.pid, None if names is True else str(names))

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.wait(_TIMEOUT_S)
