"""Finds the running tasks of this user, and reads their metrics from their endpoints."""

from __future__ import annotations

import atexit
import http.client
import json
import os
import socket
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil

from tensorwire.errors import TensorwireError, UsageError
from tensorwire.metrics.rates import JobRates, job_rates
from tensorwire.metrics.task_metrics import TaskMetrics
from tensorwire.settings import OLD_FOLDER

FOLDER_VARIABLE = "XDG_RUNTIME_DIR"
NO_TASK = (
    "no grpc++ task with an endpoint runs here: start tasks with `tensorwire run --protocol grpc++ "
    "--metrics-port 0`, or with TENSORWIRE_METRICS=0 if the script names grpc++, or name "
    "them: --endpoints HOST:PORT,…"
)
"""Error message for the case that no task has announced itself."""


@dataclass(frozen=True)
class Announcement:
    """A process of this user that serves its metrics."""

    pid: int
    started_s: float
    """When the process started, because `pid` may be reused by another process."""
    address: str
    """ "host:port" or "unix:PATH"."""


def folder() -> Path:
    """The folder of announcements; it need not exist."""
    if named := os.environ.get(OLD_FOLDER):
        return Path(named).expanduser().absolute()
    if runtime := os.environ.get(FOLDER_VARIABLE):
        return Path(runtime) / "tensorwire"
    return Path(tempfile.gettempdir()) / f"tensorwire-{os.getuid()}"


def announce(address: str) -> None:
    """Announces the address of this process's metrics to the user's other processes.

    Raises:
        OSError: the folder cannot be made or written.
        TensorwireError: the folder belongs to another user.
    """
    where = folder()
    where.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_owner(where)
    pid = os.getpid()
    record = {"pid": pid, "started_s": psutil.Process(pid).create_time(), "address": address}
    file = where / f"{pid}.json"
    partial = where / f".{pid}.json"  # then renamed, so that readers see a whole file
    partial.write_text(json.dumps(record), encoding="utf-8")
    partial.replace(file)

    def withdraw() -> None:
        if os.getpid() == pid:  # not in a child process that has inherited this handler
            file.unlink(missing_ok=True)

    atexit.register(withdraw)


def discover() -> list[Announcement]:
    """The processes that announced themselves and still run, oldest first.

    Raises:
        TensorwireError: the folder belongs to another user.
    """
    where = folder()
    if not where.is_dir():
        return []
    _check_owner(where)
    found = []
    for file in where.glob("[0-9]*.json"):
        try:
            record = Announcement(**json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            continue  # it was removed, or written by another version
        if _runs(record):
            found.append(record)
        else:
            file.unlink(missing_ok=True)  # its process was killed
    return sorted(found, key=lambda record: (record.started_s, record.pid))


def _check_owner(where: Path) -> None:
    if where.stat().st_uid != os.getuid():
        raise TensorwireError(
            f"{where}, where tasks announce themselves, belongs to another user; "
            f"let {FOLDER_VARIABLE} name a folder of your own"
        )


def _runs(record: Announcement) -> bool:
    try:
        return abs(psutil.Process(record.pid).create_time() - record.started_s) < 1.0
    except psutil.NoSuchProcess:
        return False


TIMEOUT_S = 3.0
_ON_THIS_HOST = ("unix:", "localhost:", "127.", "[::1]")


@dataclass(frozen=True)
class Fetched:
    """The answer of one endpoint: metrics, or the reason why there are none."""

    address: str
    metrics: TaskMetrics | None
    error: str = ""


def addresses_of(text: str) -> list[str]:
    """The addresses in the text of an option --endpoints.

    Raises:
        UsageError: it has none, or one is neither HOST:PORT nor unix:PATH.
    """
    named = [each.strip() for each in text.split(",") if each.strip()]
    if not named:
        raise UsageError("--endpoints is empty: write HOST:PORT or unix:PATH, or leave it out")
    for address in named:
        host, _, port = address.rpartition(":")
        is_port = bool(host) and port.isdecimal() and int(port) < 65536
        if not is_port and not address.startswith("unix:/"):
            raise UsageError(f"{address!r} is not an endpoint: write HOST:PORT or unix:PATH")
    return named


def fetch(address: str, timeout_s: float = TIMEOUT_S) -> Fetched:
    """Asks one endpoint ("host:port" or "unix:PATH")."""
    connection = _connect(address, timeout_s)
    try:
        connection.request("GET", "/figures")
        reply = connection.getresponse()
        body = reply.read()
        if reply.status != 200:
            return Fetched(
                address, None, f"it is not an endpoint of tensorwire (HTTP {reply.status})"
            )
        return Fetched(address, TaskMetrics.from_json(json.loads(body)))
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or "no answer"
        if isinstance(error, ConnectionRefusedError) and not address.startswith(_ON_THIS_HOST):
            reason += " (does the task serve on its loopback only? it needs --metrics-host 0.0.0.0)"
        return Fetched(address, None, reason)
    except (ValueError, TypeError, AttributeError) as error:
        return Fetched(address, None, f"it sent no metrics ({error})")
    finally:
        connection.close()


def fetch_all(addresses: Iterable[str], timeout_s: float = TIMEOUT_S) -> list[Fetched]:
    """Asks all endpoints in parallel, so that one that hangs delays no other; keeps the order."""
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
    """The tasks at given endpoints, or the tasks of this user on this host that announced one."""

    def __init__(self, addresses: Sequence[str] | None = None) -> None:
        self._named = list(addresses) if addresses is not None else None
        self._last: list[TaskMetrics] = []

    def addresses(self) -> list[str]:
        """Addresses of the endpoints to ask now. Tasks that announce themselves may change."""
        if self._named is not None:
            return self._named
        return [found.address for found in discover()]

    def metrics(self) -> tuple[list[TaskMetrics], dict[str, str]]:
        """The metrics of each task, and the reasons for those that are missing."""
        answers = fetch_all(self.addresses())
        metrics = [answer.metrics for answer in answers if answer.metrics is not None]
        return metrics, {a.address: a.error for a in answers if a.metrics is None}

    def look(self) -> JobRates:
        """The rates of all tasks since the last look; the first look has none."""
        now, unreachable = self.metrics()
        rates = job_rates(self._last, now, unreachable)
        self._last = now
        return rates
