"""Where an experiment runs its jobs: in the lab (`in_lab`), or on a cluster (`in_cluster`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager

from tensorwire.errors import TensorwireError
from tensorwire.k8s.job import Job
from tensorwire.measure.record import LabDocument
from tensorwire.metrics.task_metrics import TaskMetrics


class RunningJob(ABC):
    """A job that was started, seen from whoever measures it."""

    @abstractmethod
    def go_on(self) -> None:
        """Does what is due now, which takes little time.

        Raises:
            TensorwireError: a task has failed, or its training has ended.
        """

    @abstractmethod
    def figures(self) -> list[TaskMetrics]:
        """What the tasks serve that serve their figures now."""

    @abstractmethod
    def troubles(self) -> str:
        """What holds tasks up, for an error; empty where nothing is known."""

    @property
    @abstractmethod
    def node_of(self) -> Mapping[str, str]:
        """Of each task, by its name."""


class Stage(ABC):
    """Where jobs run."""

    @abstractmethod
    def run(self, job: Job) -> AbstractContextManager[RunningJob]:
        """Starts a job; nothing of it is left afterwards, however the block is left."""

    @property
    @abstractmethod
    def link_mb_per_s(self) -> float | None:
        """What a node's link carries in each direction, where that is known."""

    @property
    @abstractmethod
    def cores_of_node(self) -> int | None:
        """Where that is known."""

    @property
    @abstractmethod
    def tensorflow(self) -> str | None:
        """Its version, where that is known."""

    @property
    @abstractmethod
    def document(self) -> LabDocument | None:
        """The lab as a record has it; None outside of one."""


def ended_early(task: str) -> TensorwireError:
    """What `go_on` raises where training has ended."""
    return TensorwireError(
        f"{task} has ended before its figures were read: let the script train longer, or look at "
        "it for fewer --seconds"
    )
