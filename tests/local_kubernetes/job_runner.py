"""Runs the jobs of `make k8s-compare` in a lab.

Kubernetes' control plane runs on this machine, and nodes are parts of a lab.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

from local_kubernetes import ControlPlane, NodeSettings, VirtualKubelet
from tensorwire.bench.frame.record import LabDocument
from tensorwire.bench.lab import HostSettings
from tensorwire.bench.layouts.job_runner import JobRunner, RunningJob
from tensorwire.errors import UsageError
from tensorwire.k8s.job import Job
from tensorwire.k8s.layout import servers
from tensorwire.owning_context import OwningContext
from tensorwire.plugin.tensorflow_install import not_installed

# Memory of a TensorFlow process with a small model.
_TASK_BYTES = 600e6


class LabJobRunner(JobRunner, OwningContext):
    """A context manager: the control plane runs within the context, nodes run with a job."""

    poll_s = 0.5  # the API server is local and has no other clients

    def __init__(self, link: HostSettings, templates: Path | None = None) -> None:
        """Checks the requirements; entering it starts the control plane.

        Raises:
            NoControlPlane: it is not built, or this user cannot run pods; the message helps.
            TensorwireError: TensorFlow is not installed.
        """
        of_tensorflow = importlib.metadata.packages_distributions().get("tensorflow")
        if not of_tensorflow:
            raise not_installed()
        self.tensorflow = importlib.metadata.version(of_tensorflow[0])
        self._link = link
        self._templates = templates
        self.link_mb_per_s = link.rate_bits_per_s and link.rate_bits_per_s / 8e6
        self.cores_of_node = len(os.sched_getaffinity(0))
        self._control_plane = ControlPlane()
        self._notes: dict[str, None] = {}
        self._most_nodes = 0

    def _open(self, held: contextlib.ExitStack) -> None:
        held.enter_context(self._control_plane)
        self._connection = held.enter_context(self._control_plane.connection())

    @contextlib.contextmanager
    def run(self, job: Job) -> Iterator[RunningJob]:
        _check_memory(job)
        nodes = len(servers(job.layout, job.groups))
        # Any group may be scheduled on any node.
        room = max(group.count for group in job.groups) + 2
        settings = [NodeSettings(f"node-{i}", pods=room) for i in range(nodes)]
        kubelet = VirtualKubelet(self._control_plane, settings, link=self._link, limit_cpus=True)
        with kubelet, super().run(job) as running:
            self._most_nodes = max(self._most_nodes, nodes)
            yield running
            self._notes |= dict.fromkeys(kubelet.notes)
        limits = sum(group.count * job.resources(group).cores for group in job.groups)
        cores = len(os.sched_getaffinity(0))
        if limits > cores:
            self._notes[
                f"the CPU limits of all pods are {limits:g} cores, but this machine has {cores}: "
                "pods may wait for CPU"
            ] = None

    @property
    def lab(self) -> LabDocument:
        rate = self._link.rate_bits_per_s
        return {
            "hosts": self._most_nodes,
            "rate_mbit_per_s": None if rate is None else rate / 1e6,
            "delay_us": self._link.delay_s * 1e6,
            "cpus": None,
            "network": True,
            "notes": ["limits of memory are not applied in the lab", *self._notes],
        }


def _check_memory(job: Job) -> None:
    tasks = sum(1 for _ in job.cluster.tasks())
    free = psutil.virtual_memory().available
    if tasks * _TASK_BYTES > free:
        raise UsageError(
            f"{tasks} TensorFlow processes need about {tasks * _TASK_BYTES / 1e9:.1f} GB, and this "
            f"machine has {free / 1e9:.1f} GB free: use fewer --workers"
        )
