"""The tasks of a job: their addresses, `TF_CONFIG`, and the data plane's addresses."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tensorwire.engine import data_port, parse_endpoint_map, second_data_port
from tensorwire.errors import UsageError

GRPC, GRPCPP = "grpc", "grpc++"
PROTOCOLS = (GRPCPP, GRPC)
"""The protocols of a server, ours first."""

WORKER_JOBS = ("chief", "master", "worker")
TRAINING_JOBS = (*WORKER_JOBS, "evaluator")

_JOB = re.compile(r"(?:/job:)?([a-zA-Z]\w*)(?=[:/]|$)")


def is_ps(task: str) -> bool:
    """Whether a task ("ps:0", or "/job:ps/task:0") holds variables, whatever its job is called."""
    job = _JOB.match(task)
    return job is not None and job[1] not in (*TRAINING_JOBS, "localhost")


def device_filters(jobs: Mapping[str, Any], job_name: str, task_index: int) -> list[str]:
    """The device filters of a task's session: its own task, and all jobs that do not train.

    Args:
        jobs: the addresses of each job, as a list or as a mapping from the task's index.

    Raises:
        UsageError: the cluster has no such task.
    """
    if not isinstance(task_index, int):
        raise UsageError(f"task_index is {task_index!r}: give a number, as int(…) makes it of text")
    tasks = jobs.get(job_name, ())
    known = tasks if isinstance(tasks, Mapping) else range(len(tasks))
    if task_index not in known:
        counts = ", ".join(f"{job} ({len(found)})" for job, found in jobs.items())
        raise UsageError(
            f"the cluster has no task {task_index} of job {job_name!r}; its jobs: {counts}"
        )
    others = [job for job in jobs if job not in TRAINING_JOBS and job != job_name]
    return [*(f"/job:{job}" for job in others), f"/job:{job_name}/task:{task_index}"]


def split_address(address: str) -> tuple[str, int]:
    """``"host:port"`` or ``"[v6]:port"`` as (host, port), the host without brackets.

    Raises UsageError when there is no host or no port in 1..65535.
    """
    host, colon, digits = address.rpartition(":")
    port = int(digits) if digits.isascii() and digits.isdigit() else 0
    bare = host
    if host.startswith("[") and host.endswith("]"):
        bare = host[1:-1]
    elif ":" in host:
        bare = ""  # an IPv6 address without brackets: the start of the port is ambiguous
    if not colon or not _is_host(bare) or not 1 <= port <= 65535:
        raise UsageError(f'"{address}" is not an address: write host:port, as in 127.0.0.1:2222')
    return bare, port


def _is_host(name: str) -> bool:
    """Whether Python's resolver accepts the name: for "no..host" it raises no OSError."""
    try:
        return bool(name.encode("idna"))
    except UnicodeError:
        return False


@dataclass(frozen=True, order=True)
class Task:
    """One process of the job, named as TensorFlow names it."""

    job: str
    index: int

    def __str__(self) -> str:
        return f"/job:{self.job}/task:{self.index}"


@dataclass(frozen=True)
class ClusterSpec:
    """gRPC addresses by job and task index.

    A job is a list of addresses or, where indices are missing, maps each index to its address, as
    TensorFlow's class of this name takes them. This one needs no TensorFlow.
    """

    jobs: Mapping[str, Sequence[str] | Mapping[int, str]]

    def __post_init__(self) -> None:
        seen: dict[str, Task] = {}
        for task, address in self.tasks():
            split_address(address)
            if address in seen:
                raise UsageError(f"{task} and {seen[address]} have the same address {address}")
            seen[address] = task

    def tasks(self) -> Iterator[tuple[Task, str]]:
        """Every task with its address, in the order of the jobs and then of the index."""
        for job in self.jobs:
            for index, address in self.addresses(job).items():
                yield Task(job, index), address

    def addresses(self, job: str) -> dict[int, str]:
        """The addresses of a job by index, in the order of the index; none for an unknown job."""
        addresses = self.jobs.get(job, ())
        if isinstance(addresses, Mapping):
            return dict(sorted(addresses.items()))
        return dict(enumerate(addresses))

    def address(self, task: Task) -> str:
        """The gRPC address of a task; UsageError when the cluster has no such task."""
        found = self.addresses(task.job).get(task.index)
        if found is None:
            known = ", ".join(f"{job} ({len(found)})" for job, found in self.jobs.items())
            raise UsageError(f"the cluster has no {task}; its jobs: {known or 'none'}")
        return found

    @staticmethod
    def from_hosts(**jobs: str) -> ClusterSpec:
        """A spec from addresses by job: ``from_hosts(ps="a:1,b:1", worker="c:1")``.

        Raises UsageError where a job has no address, as with a shell's variable that is not set.
        """
        made = {job: tuple(filter(None, map(str.strip, h.split(",")))) for job, h in jobs.items()}
        for job, addresses in made.items():
            if not addresses:
                raise UsageError(f"--{job}-hosts is empty: write host:port, as in 127.0.0.1:2222")
        return ClusterSpec(made)


ENDPOINT_MAP_NAME = ".endpoint_map"
"""The file's default name, in the working directory."""
ENDPOINT_MAP_VARIABLE = "TENSORWIRE_ENDPOINT_MAP"
"""The environment variable that names another file."""


def endpoint_map_path() -> Path:
    """The file that the tasks of this environment read, if it exists."""
    return Path(os.environ.get(ENDPOINT_MAP_VARIABLE) or ENDPOINT_MAP_NAME).absolute()


def data_addresses(grpc_address: str) -> list[str]:
    """The data addresses of the task at `grpc_address` by the default rule: one or two.

    Raises UsageError if `grpc_address` is not an address.
    """
    _, port = split_address(grpc_address)
    host = grpc_address.rpartition(":")[0]
    return [f"{host}:{p}" for p in (data_port(port), second_data_port(port)) if p is not None]


def read_endpoint_map(path: Path) -> dict[str, str]:
    """Reads a map's file: the data address of each gRPC address.

    Raises UsageError that names file and line and shows the format.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(
            f"{path} is not text; it has a line a task: grpc_host:port=data_host:port",
            page="docs/settings.md#ports",
        ) from None
    return parse_endpoint_map(text, str(path))


_FORM = (
    '{"cluster": {"ps": ["host:port", ...], "worker": [...]}, '
    '"task": {"type": "worker", "index": 0}}'
)


@dataclass(frozen=True)
class TfConfig:
    """The content of ``TF_CONFIG``."""

    cluster: ClusterSpec
    task: Task | None = None


def parse_tf_config(text: str) -> TfConfig | None:
    """Reads the value of ``TF_CONFIG``; None if it is empty or names no cluster.

    Raises UsageError that names the mistake and shows the form.
    """
    if not text.strip():
        return None
    try:
        config = json.loads(text)
    except ValueError as error:
        raise UsageError(f"TF_CONFIG is not JSON ({error}); it has the form {_FORM}") from None
    if not isinstance(config, dict):
        raise _malformed("it is not an object")
    cluster = config.get("cluster")
    if not cluster:
        for key in config:
            if get_close_matches(key, ["cluster"]) and key != "cluster":
                raise _malformed(f'"{key}" should be "cluster"')
        return None
    jobs, task = _cluster(cluster), _task(config.get("task"))
    # An evaluator is no task of its cluster.
    if task is not None and task.job != "evaluator":
        try:
            jobs.address(task)
        except UsageError as error:
            raise _malformed(str(error)) from None
    return TfConfig(jobs, task)


def _malformed(what: str) -> UsageError:
    return UsageError(f"TF_CONFIG: {what}; it has the form {_FORM}")


def _cluster(cluster: Any) -> ClusterSpec:
    if not isinstance(cluster, dict):
        raise _malformed('"cluster" is not an object')
    jobs: dict[str, tuple[str, ...] | dict[int, str]] = {}
    for job, value in cluster.items():
        sparse = isinstance(value, Mapping)
        addresses = list(value.values()) if sparse else value
        if not isinstance(addresses, list) or not all(isinstance(a, str) for a in addresses):
            raise _malformed(f'"cluster": "{job}" is not a list of addresses')
        if not sparse:
            jobs[job] = tuple(addresses)
            continue
        try:
            indices = [int(index) for index in value]
        except ValueError:
            raise _malformed(f'"cluster": "{job}" has an index that is no number') from None
        if any(index < 0 for index in indices):
            raise _malformed(f'"cluster": "{job}" has an index below 0')
        jobs[job] = dict(zip(indices, addresses, strict=True))
    return ClusterSpec(jobs)


def _task(task: Any) -> Task | None:
    if not task:
        return None
    if not isinstance(task, dict) or not isinstance(task.get("type"), str):
        raise _malformed('"task" has no "type"')
    try:
        index = int(task.get("index", 0))
    except (TypeError, ValueError):
        raise _malformed(f'"task": "index" is {task["index"]!r}, not a number') from None
    return Task(task["type"], index)
