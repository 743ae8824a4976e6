"""The Jobs and pods that Kubernetes would make from rendered manifests, without a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorwire.k8s.render import Manifest


@dataclass(frozen=True)
class Pod:
    """A pod as the Job controller makes it."""

    name: str
    """Its host name: "flights-ps-0-0.flights"."""
    job: str
    """Name of its Job."""
    member: int
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    spec: Mapping[str, Any]

    @property
    def task_container(self) -> Mapping[str, Any]:
        return task_container(self.spec)


def by_kind(documents: Sequence[Manifest], kind: str) -> list[Manifest]:
    return [d for d in documents if d["kind"] == kind]


def jobs_of(documents: Sequence[Manifest]) -> list[Manifest]:
    """The Jobs; those of a JobSet or a TrainJob as its controller would make them."""
    jobs = by_kind(documents, "Job")
    for jobset in [*by_kind(documents, "JobSet"), *by_kind(documents, "TrainingRuntime")]:
        spec = jobset["spec"]
        if jobset["kind"] == "TrainingRuntime":
            spec = spec["template"]["spec"]
        for replicated in spec["replicatedJobs"]:
            for index in range(replicated["replicas"]):
                name = f"{jobset['metadata']['name']}-{replicated['name']}-{index}"
                template = replicated["template"]
                metadata = {**template["metadata"], "name": name}
                jobs.append({"kind": "Job", "metadata": metadata, "spec": template["spec"]})
    return jobs


def pods_of(documents: Sequence[Manifest]) -> list[Pod]:
    """The pods of all Jobs, as the Job controller makes them."""
    pods = [pod for job in jobs_of(documents) for pod in _pods_of_job(job)]
    assert pods, "no Job has a pod"
    return pods


def task_container(pod_spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The container that is the task."""
    containers = [*pod_spec.get("initContainers", ()), *pod_spec["containers"]]
    (found,) = [c for c in containers if c["name"] == "task"]
    return found  # type: ignore[no-any-return]


def _pods_of_job(job: Manifest) -> Iterator[Pod]:
    name, spec = job["metadata"]["name"], job["spec"]
    assert spec["completionMode"] == "Indexed" and spec["parallelism"] == spec["completions"]
    template = spec["template"]
    for member in range(spec["completions"]):
        yield Pod(
            name=f"{name}-{member}.{template['spec']['subdomain']}",
            job=name,
            member=member,
            labels=template["metadata"]["labels"],
            annotations=template["metadata"].get("annotations") or {},
            spec=template["spec"],
        )
