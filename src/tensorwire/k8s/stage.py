"""The place where `tensorwire k8s compare` runs jobs: the interface, and a lab."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import psutil

from tensorwire.errors import TensorwireError, UsageError
from tensorwire.k8s.job import Job
from tensorwire.k8s.local_kubernetes import LocalKubernetes
from tensorwire.k8s.render import parse, render
from tensorwire.lab.settings import LinkSettings
from tensorwire.measure.record import LabDocument
from tensorwire.metrics.observed_job import fetch_all
from tensorwire.metrics.task_metrics import TaskMetrics
from tensorwire.plugin.tensorflow_install import not_installed


class RunningJob(ABC):
    """A job that was started and is measured."""

    @abstractmethod
    def go_on(self) -> None:
        """Does what is due now, which takes little time.

        Raises:
            TensorwireError: a task has failed, or its training has ended.
        """

    @abstractmethod
    def metrics(self) -> list[TaskMetrics]:
        """Metrics of the tasks that serve metrics now."""

    @abstractmethod
    def troubles(self) -> str:
        """The reasons why tasks do not start, for an error; empty if none is known."""

    @property
    @abstractmethod
    def node_of(self) -> Mapping[str, str]:
        """The node of each task, by the task's name."""


class Stage(ABC):
    """A place where jobs run."""

    @abstractmethod
    def run(self, job: Job) -> AbstractContextManager[RunningJob]:
        """Starts a job; nothing of it is left afterwards, however the block is left."""

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
        """The lab as a record has it; None outside of one."""


def ended_early(task: str) -> TensorwireError:
    """The error of `go_on` for training that has ended."""
    return TensorwireError(
        f"{task} has ended before its metrics were read: let the script train longer, or look at "
        "it for fewer --seconds"
    )


# A process of TensorFlow with a small model.
_TASK_BYTES = 600e6


class LabStage(Stage):
    """A lab in which each pod is a host."""

    def __init__(self, link: LinkSettings, templates: Path | None = None) -> None:
        """Raises TensorwireError without TensorFlow."""
        self._link = link
        self._templates = templates
        self._notes: dict[str, None] = {}
        self._nodes = 0
        of_tensorflow = importlib.metadata.packages_distributions().get("tensorflow")
        if not of_tensorflow:
            raise not_installed()
        self._tensorflow = importlib.metadata.version(of_tensorflow[0])

    @contextlib.contextmanager
    def run(self, job: Job) -> Iterator[RunningJob]:
        _check_memory(job)
        documents = parse(render(job, self._templates))
        with LocalKubernetes(documents, link=self._link, limit_cpus=True) as box:
            self._nodes = max(self._nodes, len(box.nodes))
            yield _InBox(box)
            self._notes |= dict.fromkeys(box.notes)
        limits = sum(pod.pod.cpu_limit for pod in box.pods)
        cores = self.cores_of_node
        if limits > cores:
            self._notes[
                f"the pods may use {limits:g} cores together, and this machine has {cores}: where "
                "they want more, they wait for each other"
            ] = None

    @property
    def link_mb_per_s(self) -> float | None:
        rate = self._link.rate_bits_per_s
        return None if rate is None else rate / 8e6

    @property
    def cores_of_node(self) -> int:
        return len(os.sched_getaffinity(0))

    @property
    def tensorflow(self) -> str:
        return self._tensorflow

    @property
    def document(self) -> LabDocument:
        rate = self._link.rate_bits_per_s
        return {
            "hosts": self._nodes,
            "rate_mbit_per_s": None if rate is None else rate / 1e6,
            "delay_us": self._link.delay_s * 1e6,
            "cpus": None,
            "network": True,
            "notes": ["limits of memory are not applied in the lab", *self._notes],
        }


class _InBox(RunningJob):
    def __init__(self, box: LocalKubernetes) -> None:
        self._box = box
        self._endpoints = [f"{pod.host.address}:{pod.pod.port('metrics')}" for pod in box.pods]

    def go_on(self) -> None:
        self._box.step()
        for pod in self._box.pods:
            if pod.ended and not pod.pod.is_sidecar:
                raise ended_early(pod.pod.task)

    def metrics(self) -> list[TaskMetrics]:
        found = self._box.observer.inside(lambda: fetch_all(self._endpoints))
        # One that has loaded the plug-in and is no task yet has no name.
        return [f.metrics for f in found if f.metrics is not None and f.metrics.tasks]

    def troubles(self) -> str:
        restarted = [pod for pod in self._box.pods if pod.restarts]
        of = restarted[0] if restarted else self._box.pods[-1]
        return f"the last lines of {of.pod.task}:\n{of.task.tail()}"

    @property
    def node_of(self) -> Mapping[str, str]:
        return {pod.pod.task: pod.node for pod in self._box.pods}


def _check_memory(job: Job) -> None:
    tasks = sum(1 for _ in job.cluster.tasks())
    free = psutil.virtual_memory().available
    if tasks * _TASK_BYTES > free:
        raise UsageError(
            f"{tasks} TensorFlow processes take about {tasks * _TASK_BYTES / 1e9:.1f} GB, and this "
            f"machine has {free / 1e9:.1f} GB free: give fewer --workers"
        )
