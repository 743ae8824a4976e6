"""Evidence as JSON: writes and reads diagnoses, and reads plans of `tensorwire place`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorwire.dataclass_json import from_document, to_document
from tensorwire.doctor.evidence import Diagnosis, Evidence, PlacedPart, Placement, Run, Scaling
from tensorwire.errors import UsageError
from tensorwire.files import read_json
from tensorwire.placement.plan import PlacementPlan

COMMAND = "doctor"


def to_json(diagnosis: Diagnosis) -> str:
    """The diagnosis with its evidence."""
    return json.dumps({"command": COMMAND, **to_document(diagnosis)}) + "\n"


def read(path: Path) -> Evidence:
    """The evidence of a diagnosis that `to_json` wrote.

    Raises:
        UsageError: the file cannot be read, or contains something else.
    """
    document = read_json(path)
    try:
        if not isinstance(document, Mapping) or "command" not in document:
            raise ValueError("it names no command")
        if document["command"] != COMMAND:
            raise ValueError(f"it is of {document['command']!r}")
        evidence = from_document(Evidence, document["evidence"])
        for task in evidence.job.tasks if evidence.job is not None else ():
            if not task.seconds > 0:
                raise ValueError(f"{task.task} was looked at for {task.seconds:g} s")
        return evidence
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} is no record of a look at a job, which `tensorwire doctor --json` writes: "
            f"{error}"
        ) from error


def scaling_of(looks: Sequence[Evidence]) -> Scaling | None:
    """The job's speed for each number of workers; None if all looks have the same number."""
    runs = [
        Run(
            workers=len(job.workers),
            ps=len(job.ps),
            steps_per_s=job.steps_per_s,
        )
        for job in (look.job for look in looks)
        if job is not None and job.steps
    ]
    if len({run.workers for run in runs}) < 2:
        return None
    return Scaling(source=f"{len(runs)} looks at the job", runs=tuple(runs))


def placement_of_document(document: Any, source: str) -> Placement:
    """The placement of one plan, or of the only plan among `plans`.

    Raises:
        UsageError: the document has no plan, or several.
    """
    if isinstance(document, Mapping) and "plans" in document:
        plans = document["plans"]
        if len(plans) != 1:
            raise UsageError(f"{source} has {len(plans)} plans: keep one, with --placement")
        document = plans[0]
    return placement_of_plan(PlacementPlan.from_document(document, source), source)


def placement_of_plan(plan: PlacementPlan, source: str) -> Placement:
    """The placement of a plan; `source` names the graph."""
    return Placement(
        source=f"{plan.strategy.replace('_', ' ')} of {source}",
        ps=plan.ps,
        parts=tuple(PlacedPart(part.variable, part.task, part.bytes) for part in plan.parts),
    )
