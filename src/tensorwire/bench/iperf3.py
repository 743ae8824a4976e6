"""What iperf3 gets from the link between the two ends, where it is installed."""

from __future__ import annotations

import json
import shutil

from tensorwire.bench.places import Places
from tensorwire.bench.sides import ClusterProcesses

IPERF3 = "iperf3"
_SECONDS = 1
_TIMEOUT_S = 30.0


def is_installed() -> bool:
    return shutil.which(IPERF3) is not None


class Iperf3Side(ClusterProcesses):
    """A server at one end, and a client at the other each time that it is asked for."""

    def __init__(self, places: Places) -> None:
        super().__init__(places.cluster({"server": 1, "client": 1}))
        self._address, _, self._port = self._cluster.spec["server"][0].rpartition(":")

    def _start(self) -> None:
        server = self._cluster.start("server", 0, [IPERF3, "--server", "--port", self._port])
        self._cluster.wait_listening([server], _TIMEOUT_S)

    def mb_per_s(self) -> float:
        """What arrived, over a second of one stream."""
        output = self._cluster.directory / "client.json"
        argv = [IPERF3, "--client", self._address, "--port", self._port, "--json"]
        client = self._cluster.start("client", 0, [*argv, "--time", str(_SECONDS)], stdout=output)
        self._cluster.wait([client], _TIMEOUT_S)
        received = json.loads(output.read_text())["end"]["sum_received"]
        return float(received["bits_per_second"]) / 8e6
