"""Jobs as the tests need them, and the pods that Kubernetes would make of their manifests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorwire.k8s.cases import Case
from tensorwire.k8s.job import Job, Script
from tensorwire.k8s.render import Manifest, parse, render

from .scheduler import Pod

SCRIPT = Script("/etc/tensorwire/train.py", "import tensorflow\n")


def job(workers: int = 4, ps: int = 2, **options: Any) -> Job:
    named = {"name": "flights", "image": "registry/image:1", "script": SCRIPT, **options}
    return Job(workers=workers, ps=ps, **named)


def job_of_case(case: Case, layout: str, **options: Any) -> Job:
    return job(
        case.workers,
        case.ps,
        case=case.name,
        layout=layout,
        wanted_workers_per_node=case.workers_per_node,
        **options,
    )


def manifests(of: Job) -> list[Manifest]:
    return parse(render(of))


def by_kind(documents: Sequence[Manifest], kind: str) -> list[Manifest]:
    return [d for d in documents if d["kind"] == kind]


def jobs_of(documents: Sequence[Manifest]) -> list[Manifest]:
    """The Jobs: those of a JobSet as its controller makes them."""
    jobs = by_kind(documents, "Job")
    for jobset in by_kind(documents, "JobSet"):
        for replicated in jobset["spec"]["replicatedJobs"]:
            for index in range(replicated["replicas"]):
                name = f"{jobset['metadata']['name']}-{replicated['name']}-{index}"
                template = replicated["template"]
                metadata = {**template["metadata"], "name": name}
                jobs.append({"kind": "Job", "metadata": metadata, "spec": template["spec"]})
    return jobs


def pods_of(documents: Sequence[Manifest]) -> list[Pod]:
    """The pods of all Jobs, as the Job controller makes them; named by their stable host name."""
    pods = []
    for each in jobs_of(documents):
        template = each["spec"]["template"]
        assert each["spec"]["completionMode"] == "Indexed"
        assert each["spec"]["parallelism"] == each["spec"]["completions"]
        for index in range(each["spec"]["completions"]):
            name = f"{each['metadata']['name']}-{index}.{template['spec']['subdomain']}"
            pods.append(Pod(name, template["metadata"]["labels"], template["spec"]))
    return pods


def task_container(pod_spec: Any) -> Any:
    containers = [*pod_spec.get("initContainers", ()), *pod_spec["containers"]]
    (found,) = [c for c in containers if c["name"] == "task"]
    return found
