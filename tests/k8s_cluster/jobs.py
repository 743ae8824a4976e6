"""Jobs for the tests."""

from __future__ import annotations

from typing import Any

from tensorwire.k8s.job import Job, Script
from tensorwire.k8s.layout import JobCase
from tensorwire.k8s.render import Manifest, parse, render

SCRIPT = Script("/etc/tensorwire/train.py", "import tensorflow\n")


def job(workers: int = 4, ps: int = 2, **options: Any) -> Job:
    named = {"name": "flights", "image": "registry/image:1", "script": SCRIPT, **options}
    return Job(workers=workers, ps=ps, **named)


def job_of_case(case: JobCase, layout: str, **options: Any) -> Job:
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
