"""``TF_CONFIG``, in which TensorFlow's own launchers tell a task who it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorwire.cluster.spec import ClusterSpec, Task
from tensorwire.errors import UsageError

_FORM = (
    '{"cluster": {"ps": ["host:port", ...], "worker": [...]}, '
    '"task": {"type": "worker", "index": 0}}'
)


@dataclass(frozen=True)
class TfConfig:
    """What ``TF_CONFIG`` says. ``rpc_layer`` is the protocol, where it names one."""

    cluster: ClusterSpec
    task: Task | None = None
    rpc_layer: str | None = None


def parse_tf_config(text: str) -> TfConfig | None:
    """Reads the value of ``TF_CONFIG``; None where it is empty or names no cluster.

    Raises UsageError that says what is wrong and shows the form.
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
        return None
    return TfConfig(_cluster(cluster), _task(config.get("task")), config.get("rpc_layer"))


def _malformed(what: str) -> UsageError:
    return UsageError(f"TF_CONFIG: {what}; it has the form {_FORM}")


def _cluster(cluster: Any) -> ClusterSpec:
    if not isinstance(cluster, dict):
        raise _malformed('"cluster" is not an object')
    jobs: dict[str, tuple[str, ...]] = {}
    for job, value in cluster.items():
        # A sparse job has its addresses by index.
        addresses = list(value.values()) if isinstance(value, Mapping) else value
        if not isinstance(addresses, list) or not all(isinstance(a, str) for a in addresses):
            raise _malformed(f'"cluster": "{job}" is not a list of addresses')
        jobs[job] = tuple(addresses)
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
