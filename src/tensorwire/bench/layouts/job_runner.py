"""Runs a job in a cluster while it is measured, and removes it afterwards."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tensorwire.bench.frame.record import LabDocument
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.k8s import submit, watch
from tensorwire.k8s.connection import Connection, Unreachable
from tensorwire.k8s.job import Job
from tensorwire.k8s.render import parse, render
from tensorwire.k8s.state import FAILED, SUCCEEDED
from tensorwire.metrics.task_metrics import TaskMetrics

_REMOVED_WITHIN_S = 120.0
_MOST_READ_AT_ONCE = 8


class RunningJob:
    """A submitted job."""

    def __init__(self, connection: Connection, job: Job, poll_s: float) -> None:
        self._connection = connection
        self._job = job
        self.poll_s = poll_s
        self._state = watch.observe(connection, job.name)

    def go_on(self, seconds: float) -> None:
        """Lets the job run for some time, and observes it meanwhile.

        Raises:
            TensorwireError: a task has failed, or the training has ended.
        """
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, self.poll_s))
            self._observe()

    def _observe(self) -> None:
        with contextlib.suppress(Unreachable):  # temporary; the callers have timeouts
            self._state = watch.observe(self._connection, self._job.name)
        if self._state.outcome == FAILED:
            raise TensorwireError(watch.failure(self._connection, self._job.name, self._state))
        for task in self._state.tasks:
            if task.phase == SUCCEEDED:
                raise TensorwireError(
                    f"{task.name} ended before its metrics were read: make the script train "
                    "longer, or use fewer --seconds"
                )

    def metrics(self) -> list[TaskMetrics]:
        """Metrics of the tasks that currently serve metrics."""
        up = [task for task in self._state.tasks if task.phase == "ready"]
        with ThreadPoolExecutor(_MOST_READ_AT_ONCE) as pool:
            found = pool.map(lambda task: watch.metrics_of(self._connection, task), up)
            return [each for each in found if each is not None and each.tasks]

    def troubles(self) -> str:
        """Why tasks do not start, for an error message; empty if nothing is known."""
        return "; ".join(self._state.all_troubles[:3])

    @property
    def node_of(self) -> Mapping[str, str]:
        """The node of each task, by the task's name."""
        return {task.name: task.node or "?" for task in self._state.tasks}


class JobRunner:
    """A Kubernetes cluster where jobs run. No job with the name may exist there."""

    poll_s = 2.0
    link_mb_per_s: float | None = None
    """The capacity of a node's link in each direction; None if unknown."""
    cores_of_node: int | None = None
    tensorflow: str | None = None
    """The version of TensorFlow; None if unknown."""

    def __init__(self, connection: Connection, templates: Path | None = None) -> None:
        self._connection = connection
        self._templates = templates

    @contextlib.contextmanager
    def run(self, job: Job) -> Iterator[RunningJob]:
        """Starts a job; the context removes everything of it on exit, also after an exception."""
        documents = parse(render(job, self._templates))
        changes = submit.preview(self._connection, documents)
        if there := [each for each in changes if each.what != submit.CREATED]:
            raise UsageError(
                f"{there[0].kind} {there[0].name} exists already, in namespace "
                f"{self._connection.namespace}: `tensorwire k8s delete {job.name}`, or use "
                "another --name"
            )
        try:
            submit.submit(self._connection, documents)
            yield RunningJob(self._connection, job, self.poll_s)
        finally:
            submit.delete(self._connection, job.name, _REMOVED_WITHIN_S)

    @property
    def lab(self) -> LabDocument | None:
        """The lab for a record; None outside a lab."""
        return None
