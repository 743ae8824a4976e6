"""Reads the metrics of running tasks from their endpoints, once or again and again."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tensorwire.errors import UsageError
from tensorwire.metrics import announce
from tensorwire.metrics.rates import JobRates, job_rates
from tensorwire.metrics.task_metrics import TaskMetrics

TIMEOUT_S = 3.0


@dataclass(frozen=True)
class Fetched:
    """What came of asking one endpoint: figures, or why there are none."""

    address: str
    figures: TaskMetrics | None
    error: str = ""


def check_address(address: str) -> str:
    """The address as it is.

    Raises:
        UsageError: it is neither HOST:PORT nor unix:PATH.
    """
    host, _, port = address.rpartition(":")
    if address.startswith("unix:/") or (host and port.isdecimal() and int(port) < 65536):
        return address
    raise UsageError(f"{address!r} is no endpoint: HOST:PORT or unix:PATH")


def fetch(address: str, timeout_s: float = TIMEOUT_S) -> Fetched:
    """Asks one endpoint ("host:port" or "unix:PATH")."""
    connection = _connect(address, timeout_s)
    try:
        connection.request("GET", "/figures")
        reply = connection.getresponse()
        body = reply.read()
        if reply.status != 200:
            return Fetched(address, None, f"it is no endpoint of tensorwire (HTTP {reply.status})")
        return Fetched(address, TaskMetrics.from_json(json.loads(body)))
    except (OSError, http.client.HTTPException) as error:
        return Fetched(address, None, getattr(error, "strerror", None) or str(error) or "no answer")
    except (ValueError, TypeError, AttributeError) as error:
        return Fetched(address, None, f"it sent no figures ({error})")
    finally:
        connection.close()


def fetch_all(addresses: Iterable[str], timeout_s: float = TIMEOUT_S) -> list[Fetched]:
    """Asks all at once, so that one that hangs delays nobody; in their order."""
    wanted = list(addresses)
    if not wanted:
        return []
    with ThreadPoolExecutor(max_workers=min(32, len(wanted))) as pool:
        return list(pool.map(lambda address: fetch(address, timeout_s), wanted))


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _connect(address: str, timeout_s: float) -> http.client.HTTPConnection:
    if address.startswith("unix:"):
        return _UnixConnection(address.removeprefix("unix:"), timeout_s)
    host, _, port = address.rpartition(":")
    return http.client.HTTPConnection(host.strip("[]"), int(port), timeout=timeout_s)


class ObservedJob:
    """The tasks at given endpoints, or those of this user on this host that announced theirs."""

    def __init__(self, addresses: Sequence[str] | None = None) -> None:
        self._named = list(addresses) if addresses is not None else None
        self._last: list[TaskMetrics] = []

    def addresses(self) -> list[str]:
        """Where tasks are asked now; those that announce themselves come and go."""
        if self._named is not None:
            return self._named
        return [found.address for found in announce.discover()]

    def figures(self) -> tuple[list[TaskMetrics], dict[str, str]]:
        """What each task counted so far, and of those that do not say it, why."""
        answers = fetch_all(self.addresses())
        figures = [answer.figures for answer in answers if answer.figures is not None]
        return figures, {a.address: a.error for a in answers if a.figures is None}

    def look(self) -> JobRates:
        """What tasks did since the last look; the first one has seen nothing yet."""
        now, unreachable = self.figures()
        rates = job_rates(self._last, now, unreachable)
        self._last = now
        return rates
