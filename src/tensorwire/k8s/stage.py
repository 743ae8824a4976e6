"""The places where `tensorwire k8s compare` runs jobs: a cluster, or a cluster in a lab."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager

from tensorwire.errors import TensorwireError
from tensorwire.k8s.job import Job
from tensorwire.measure.record import LabDocument
from tensorwire.metrics.task_metrics import TaskMetrics


class RunningJob(ABC):
    """A started job that is measured."""

    @abstractmethod
    def go_on(self) -> None:
        """Performs due work, which takes little time.

        Raises:
            TensorwireError: a task has failed, or the training has ended.
        """

    @abstractmethod
    def metrics(self) -> list[TaskMetrics]:
        """Metrics of the tasks that currently serve metrics."""

    @abstractmethod
    def troubles(self) -> str:
        """The reasons why tasks do not start, for an error message; empty if none is known."""

    @property
    @abstractmethod
    def node_of(self) -> Mapping[str, str]:
        """The node of each task, by the task's name."""


class Stage(ABC):
    """A place where jobs run."""

    @abstractmethod
    def run(self, job: Job) -> AbstractContextManager[RunningJob]:
        """Starts a job; the context removes everything of it on exit, also after an exception."""

    @property
    @abstractmethod
    def link_mb_per_s(self) -> float | None:
        """The capacity of a node's link in each direction; None if unknown."""

    @property
    @abstractmethod
    def cores_of_node(self) -> int | None:
        """The number of cores of a node; None if unknown."""

    @property
    @abstractmethod
    def tensorflow(self) -> str | None:
        """The version of TensorFlow; None if unknown."""

    @property
    @abstractmethod
    def document(self) -> LabDocument | None:
        """The lab for a record; None outside a lab."""


def ended_early(task: str) -> TensorwireError:
    """The error of `go_on` for training that has ended."""
    return TensorwireError(
        f"{task} ended before its metrics were read: make the script train longer, or use fewer "
        "--seconds"
    )
