"""iperf3 beside our own measurements: what another program gets out of the same path."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from tensorwire.errors import TensorwireError
from tensorwire.measure.host_pool import THIS_MACHINE, HostPool
from tensorwire.measure.tasks import TaskProcesses

IPERF3 = "iperf3"
LARGEST_MESSAGE_BYTES = 1 << 20
"""It sends and receives no larger ones over TCP."""
_SLACK_S = 30.0


def version() -> str:
    """ "3.12"; "" where it is not installed."""
    if not is_installed():
        return ""
    told = subprocess.run([IPERF3, "--version"], capture_output=True, text=True, check=False)
    words = told.stdout.split()
    return words[1] if len(words) > 1 else ""


def is_installed() -> bool:
    return shutil.which(IPERF3) is not None


class Iperf3(TaskProcesses):
    """A server at one end, and a client at the other each time that it is asked for."""

    def __init__(
        self,
        host_pool: HostPool = THIS_MACHINE,
        parts: tuple[str, ...] = ("server", "client"),
        address: str = "",
    ) -> None:
        """`parts`: those of this host; `address`: of the server, where that is another's."""
        super().__init__(host_pool.cluster(dict.fromkeys(parts, 1)))
        self._parts = parts
        self._address = address or self._cluster.spec["server"][0]

    def _start(self) -> None:
        if "server" in self._parts:
            port = self._address.rpartition(":")[2]
            server = self._cluster.start("server", 0, [IPERF3, "--server", "--port", port])
            self._cluster.wait_listening([server], _SLACK_S, int(port))

    def mb_per_s(
        self, seconds: int = 1, streams: int = 1, message_size: int | None = None
    ) -> float:
        """MB (10^6 bytes) that arrived each second, over all streams."""
        host, _, port = self._address.rpartition(":")
        argv = [IPERF3, "--client", host.strip("[]"), "--port", port, "--json"]
        argv += ["--time", str(seconds), "--parallel", str(streams)]
        if message_size is not None:
            argv += ["--length", str(min(message_size, LARGEST_MESSAGE_BYTES))]
        output = self._cluster.directory / "client.json"
        client = self._cluster.start("client", 0, argv, stdout=output)
        self._cluster.wait([client], seconds + _SLACK_S)
        return _received_mb_per_s(output)


def _received_mb_per_s(output: Path) -> float:
    try:
        received = json.loads(output.read_text())["end"]["sum_received"]
        return float(received["bits_per_second"]) / 8e6
    except (ValueError, KeyError) as error:
        raise TensorwireError(f"iperf3 said something else than expected: {error!r}") from error
