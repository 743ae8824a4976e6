"""Watches a job in a cluster: its state, the output of its tasks, and its end."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from tensorwire.errors import TensorwireError, UsageError
from tensorwire.k8s.connection import (
    API_ERRORS,
    JOB_LABEL,
    TRANSPORT_ERROR,
    Connection,
    Unreachable,
    Withheld,
)
from tensorwire.k8s.state import JobMetrics, JobState, Progress, TaskState, job_state
from tensorwire.metrics.task_metrics import TaskMetrics

_LAST_LINES = 15
_MAKERS = (
    ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"),
)
"""Objects whose controllers create the Jobs."""
_LONGEST_OUTAGE_S = 600.0  # of an API server, while a job is followed
_FIGURES_S = (2.0, 3.0)
_LONGEST_SILENCE_S = 24 * 3600.0  # of a task whose log is followed


def observe(connection: Connection, name: str) -> JobState:
    """The current state of the job.

    Raises:
        TensorwireError: there is no such job, or the cluster does not answer.
    """
    selector = f"{JOB_LABEL}={name}"
    jobs = connection.list("batch/v1", "Job", label_selector=selector)
    if not jobs and not _is_to_come(connection, name):
        raise TensorwireError(
            f"there is no job {name} in namespace {connection.namespace}: submit it, or name its "
            "--namespace"
        )
    pods = connection.list("v1", "Pod", label_selector=selector)
    try:
        events = connection.list("v1", "Event", field_selector="reason=FailedCreate")
    except TensorwireError:
        events = []  # without this permission, the state has less detail
    return job_state(jobs, pods, events)


def wait(
    connection: Connection,
    name: str,
    *,
    up_within_s: float,
    interval_s: float,
    tell: Callable[[JobState, Progress | None], None],
) -> JobState:
    """Follows a job to its end, and calls `tell` with its state every `interval_s` seconds.

    Args:
        up_within_s: the time until all tasks serve. After that there is no limit, unless tasks are
            lost and do not come back within the same time.

    Raises:
        TensorwireError: the tasks took longer (the message says why), or the cluster did not answer
            for ten minutes. The job is not removed.
    """
    metrics: JobMetrics | None = None
    not_up_since = answered = time.monotonic()
    state = observe(connection, name)
    while True:
        progress = None
        if state.is_up:
            not_up_since = time.monotonic()
            latest = read_metrics(connection, state)
            if metrics is not None and latest is not None:
                progress = Progress.between(metrics, latest)
            metrics = latest or metrics
        tell(state, progress)
        if state.outcome is not None:
            return state
        if time.monotonic() - not_up_since > up_within_s:
            up, of = state.count("ready", "succeeded"), len(state.tasks)
            why = "; ".join(state.all_troubles[:3]) or "see `tensorwire k8s logs`"
            raise TensorwireError(
                f"after {up_within_s:g} s only {up} of {of} tasks of {name} are up ({why}); "
                f"the job stays: `tensorwire k8s delete {name}` removes it"
            )
        while True:
            time.sleep(interval_s)
            try:
                state = observe(connection, name)
                answered = time.monotonic()
                break
            except Unreachable:
                if time.monotonic() - answered > _LONGEST_OUTAGE_S:
                    raise


def read_metrics(connection: Connection, state: JobState) -> JobMetrics | None:
    """Metrics of the job's ps, read through the API server; None if they cannot be read."""
    read = []
    for task in state.tasks:
        if task.role == "ps" and task.phase == "ready":
            if (metrics := metrics_of(connection, task)) is None:
                return None  # a sum over only some ps would give a wrong rate
            read.append(metrics)
    if not read:
        return None
    moved = sum(peer.tx_bytes + peer.rx_bytes for metrics in read for peer in metrics.peers)
    return JobMetrics(time.monotonic(), max(m.run_graphs + m.eager_calls for m in read), moved)


def read_progress(connection: Connection, state: JobState, over_s: float) -> Progress | None:
    """The progress of a job that goes on within `over_s` seconds; None if it cannot be read."""
    before = read_metrics(connection, state) if state.outcome is None else None
    if before is None:
        return None
    time.sleep(over_s)
    after = read_metrics(connection, state)
    return None if after is None else Progress.between(before, after)


def metrics_of(connection: Connection, task: TaskState) -> TaskMetrics | None:
    """Metrics of a task, read through the API server; None if they cannot be read."""
    if task.pod is None:
        return None
    try:
        answer = connection.core.connect_get_namespaced_pod_proxy_with_path(
            f"{task.pod}:{task.metrics_port}",
            connection.namespace,
            "figures",
            _request_timeout=_FIGURES_S,
            _preload_content=False,
        )
        return TaskMetrics.from_json(json.loads(answer.data))
    except (*API_ERRORS, TRANSPORT_ERROR, ValueError, KeyError, TypeError, AttributeError):
        return None


def find_tasks(state: JobState, wanted: str | None) -> list[TaskState]:
    """The tasks named `wanted` ("worker:3", or "worker" for all workers); all if it is None.

    Raises:
        UsageError: there is no such task; the message lists the tasks.
    """
    tasks = [t for t in state.tasks if wanted is None or wanted in (t.role, t.name)]
    if tasks:
        return tasks
    roles = sorted({task.role for task in state.tasks})
    counted = ", ".join(
        f"{role}:0 to {role}:{sum(1 for t in state.tasks if t.role == role) - 1}" for role in roles
    )
    raise UsageError(f"the job has no task {wanted}; it has {counted}")


def log(
    connection: Connection, task: TaskState, *, tail: int | None = None, follow: bool = False
) -> Iterator[str]:
    """The lines that a task's newest pod has printed, without line ends.

    Raises:
        TensorwireError: there is no log yet; the message says why.
    """
    if task.pod is None:
        raise TensorwireError(f"{task.name} has no pod yet{_because(task)}")
    if task.node is None:  # the API server would return an empty log
        raise TensorwireError(f"{task.name} has not started yet{_because(task)}")
    options: dict[str, Any] = {"tail_lines": tail} if tail is not None else {}
    if follow:
        options |= {"follow": True, "_request_timeout": (5.0, _LONGEST_SILENCE_S)}
    with connection.explained():
        try:
            answer = connection.core.read_namespaced_pod_log(
                task.pod,
                connection.namespace,
                container="task",
                _preload_content=False,
                **options,
            )
        except API_ERRORS as error:
            if error.status == 400:  # the kubelet has no container yet
                raise TensorwireError(f"{task.name} has not started yet{_because(task)}") from None
            raise
        for line in answer:
            yield line.decode(errors="replace").removesuffix("\n")


def logs(
    connection: Connection, tasks: list[TaskState], *, tail: int | None, follow: bool
) -> Iterator[tuple[TaskState, str]]:
    """The lines of several tasks: task by task, or with `follow` as they print them, until the end.

    For a task without a log, a line in brackets says why.
    """
    if not follow:
        for task in tasks:
            yield from ((task, line) for line in _log_or_reason(connection, task, tail, False))
        return
    lines: queue.Queue[tuple[TaskState, str | None]] = queue.Queue()

    def read(task: TaskState) -> None:
        for line in _log_or_reason(connection, task, tail, True):
            lines.put((task, line))
        lines.put((task, None))

    for task in tasks:
        threading.Thread(target=read, args=(task,), daemon=True).start()
    left = len(tasks)
    while left:
        task, text = lines.get()
        if text is None:
            left -= 1
        else:
            yield task, text


def _log_or_reason(
    connection: Connection, task: TaskState, tail: int | None, follow: bool
) -> Iterator[str]:
    try:
        yield from log(connection, task, tail=tail, follow=follow)
    except (TensorwireError, TRANSPORT_ERROR) as error:
        yield f"({error})"


def failure(connection: Connection, name: str, state: JobState) -> str:
    """A line that says why a job failed, followed by the last lines of the failed task."""
    task = state.failed_task
    if task is None:
        # The pod was deleted with its Job, or the Job was failed externally.
        return f"the job {name} has failed" + "".join(f"; {t}" for t in state.all_troubles[:3])
    why = task.trouble or "it failed"
    try:
        lines = [f"  {line}" for line in log(connection, task, tail=_LAST_LINES)]
    except TensorwireError:
        lines = ["  (its log is gone)"]
    first = f"the job {name} has failed: {task.name} (pod {task.pod}): {why}; its last lines:"
    return "\n".join([first, *lines])


def _because(task: TaskState) -> str:
    return f": {task.trouble}" if task.trouble else ""


def _is_to_come(connection: Connection, name: str) -> bool:
    """True if an object of that name exists whose controller has not created the Jobs yet."""
    for api_version, kind in _MAKERS:
        with contextlib.suppress(Withheld):
            if connection.find(api_version, kind, name) is not None:
                return True
    return False
