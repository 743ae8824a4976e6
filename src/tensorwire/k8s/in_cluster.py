"""Runs the jobs of `tensorwire k8s compare` in a cluster."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tensorwire.errors import TensorwireError, UsageError
from tensorwire.k8s import submit, watch
from tensorwire.k8s.connection import Connection, Unreachable
from tensorwire.k8s.job import Job
from tensorwire.k8s.render import parse, render
from tensorwire.k8s.stage import RunningJob, Stage, ended_early
from tensorwire.k8s.state import FAILED, SUCCEEDED
from tensorwire.measure.record import LabDocument
from tensorwire.metrics.task_metrics import TaskMetrics

_LOOK_EVERY_S = 2.0
_REMOVED_WITHIN_S = 120.0
_MOST_ASKED_AT_ONCE = 8


class ClusterStage(Stage):
    """A Kubernetes cluster. No job with the name may exist there."""

    def __init__(self, connection: Connection, templates: Path | None = None) -> None:
        self._connection = connection
        self._templates = templates
        self._look_every_s = _LOOK_EVERY_S

    @contextlib.contextmanager
    def run(self, job: Job) -> Iterator[RunningJob]:
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
            yield _InCluster(self._connection, job, self._look_every_s)
        finally:
            submit.delete(self._connection, job.name, _REMOVED_WITHIN_S)

    @property
    def link_mb_per_s(self) -> float | None:
        return None

    @property
    def cores_of_node(self) -> int | None:
        return None

    @property
    def tensorflow(self) -> str | None:
        return None

    @property
    def document(self) -> LabDocument | None:
        return None


class _InCluster(RunningJob):
    def __init__(self, connection: Connection, job: Job, look_every_s: float) -> None:
        self._connection = connection
        self._job = job
        self._look_every_s = look_every_s
        self._state = watch.observe(connection, job.name)
        self._looked = time.monotonic()

    def go_on(self) -> None:
        if time.monotonic() - self._looked < self._look_every_s:
            return
        self._looked = time.monotonic()
        with contextlib.suppress(Unreachable):  # temporary; the callers have timeouts
            self._state = watch.observe(self._connection, self._job.name)
        if self._state.outcome == FAILED:
            raise TensorwireError(watch.epitaph(self._connection, self._job.name, self._state))
        for task in self._state.tasks:
            if task.phase == SUCCEEDED:
                raise ended_early(task.name)

    def metrics(self) -> list[TaskMetrics]:
        up = [task for task in self._state.tasks if task.phase == "ready"]
        with ThreadPoolExecutor(_MOST_ASKED_AT_ONCE) as pool:
            found = pool.map(lambda task: watch.metrics_of(self._connection, task), up)
            return [each for each in found if each is not None and each.tasks]

    def troubles(self) -> str:
        return "; ".join(self._state.all_troubles[:3])

    @property
    def node_of(self) -> Mapping[str, str]:
        return {task.name: task.node or "?" for task in self._state.tasks}
