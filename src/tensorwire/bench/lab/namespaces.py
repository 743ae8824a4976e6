"""The namespaces of one host: network, host name, and mounts (its own /etc/hosts)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tensorwire.bench.lab.network import NetworkUnavailable

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
    """Descriptors that keep the namespaces of one host alive, until `close`."""

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
