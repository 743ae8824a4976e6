"""Writes the JSON Schema of `--json` and `/figures`: `python docs/reference/schema.py`.

A test compares the file with the output of this script.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

import tensorwire.bench.experiments.runs  # noqa: F401, results of all commands register themselves
from tensorwire.bench.experiments.all_layers import COMMAND as ALL_LAYERS
from tensorwire.bench.frame.record import LabDocument, Machine, Noise, Result
from tensorwire.doctor.evidence import Diagnosis, Finding
from tensorwire.metrics.rates import JobRates
from tensorwire.metrics.task_metrics import TaskMetrics
from tensorwire.placement.plan import Variable
from tensorwire.plan import calibration_file
from tensorwire.plan.cluster import Shape
from tensorwire.plan.prediction import Prediction
from tensorwire.plan.search import Change

PATH = Path(__file__).with_name("records.schema.json")
_REF = "#/$defs/{name}"
_NUMBERS = {"type": "object", "additionalProperties": {"type": "number"}}
_STRING: dict[str, Any] = {"type": "string"}
_INTEGER: dict[str, Any] = {"type": "integer"}
_PAIR = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}

Schema = dict[str, Any]


def result_types() -> list[type[Result]]:
    """Every result class that a record can have, sorted by name."""

    def below(kind: Any) -> Iterable[type[Result]]:
        for each in kind.__subclasses__():
            yield each
            yield from below(each)

    ours = {
        kind
        for kind in below(Result)
        if kind.commands and kind.__module__.startswith("tensorwire.")  # without those of tests
    }
    return sorted(ours, key=lambda kind: kind.__name__)


def schema() -> Schema:
    """The whole schema: a choice of all records, and a definition for each class."""
    results = result_types()
    plans = [Prediction, Shape, Change, Variable]
    roots = [TaskMetrics, JobRates, Diagnosis, Finding, Machine, Noise, *plans, *results]
    found, definitions = msgspec.json.schema_components([*roots, LabDocument], ref_template=_REF)
    references = dict(zip(roots, found, strict=False))
    classes = _classes(roots)
    for name, definition in definitions.items():
        if name in classes:
            _describe(definition, classes[name])
    definitions |= {f"{kind.__name__}Record": _record(kind) for kind in results}
    definitions["DoctorRecord"] = _of_command("doctor", references[Diagnosis])
    definitions["CheckRecord"] = _of_command(
        "check",
        {
            "type": "object",
            "properties": {
                "findings": {
                    "type": "array",
                    "items": _object(
                        state={"enum": ["ok", "warning", "error"]},
                        subject=_STRING,
                        text=_STRING,
                        advice=_STRING,
                    ),
                }
            },
            "required": ["findings"],
        },
    )
    definitions["PlanRecord"] = _plan_record()
    definitions["PlacementPlans"] = _object(
        ps=_INTEGER, plans={"type": "array", "items": {"$ref": _ref("PlacementPlan")}}
    )
    definitions["PlacementPlan"] = _placement_plan()
    files = [
        *(f"{kind.__name__}Record" for kind in results),
        *("DoctorRecord", "CheckRecord", "PlanRecord", "PlacementPlans", "PlacementPlan"),
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Records of tensorwire",
        "description": "The output of `--json` of a command, of `tensorwire top --output json` "
        "(JobRates), and of a task under /figures (TaskMetrics). Fields are added, never renamed.",
        "anyOf": [{"$ref": _ref(name)} for name in (*files, "JobRates", "TaskMetrics")],
        "$defs": dict(sorted(definitions.items())),
    }


def _ref(name: str) -> str:
    return _REF.format(name=name)


def _of_command(command: str, rest: Schema) -> Schema:
    named = {
        "type": "object",
        "properties": {"command": {"const": command}},
        "required": ["command"],
    }
    return {"allOf": [named, rest]}


def _record(kind: type[Result]) -> Schema:
    """The schema of a record with results of one class (see `Record.document`)."""
    properties: Schema = {
        "command": {"enum": list(kind.commands)},
        "version": {"type": "string", "description": "Of tensorwire."},
        "tensorflow": {"type": ["string", "null"], "description": "Null if it was not used."},
        "host": {"$ref": _ref("Machine")},
        "time": {"type": "string", "description": "UTC: 2026-01-31T12:00:00Z."},
        "results": {"type": "array", "items": {"$ref": _ref(kind.__name__)}, "minItems": 1},
        "ratios": {**_NUMBERS, "description": "Above 1: the first side of the key is faster."},
        "intervals": {
            "type": "object",
            "additionalProperties": _PAIR,
            "description": "95 % confidence intervals of the ratios.",
        },
        "ceilings": {**_NUMBERS, "description": "MB/s of this machine without TensorFlow."},
        "noise": {"anyOf": [{"$ref": _ref("Noise")}, {"type": "null"}]},
        "lab": {"$ref": _ref("LabDocument")},
    }
    if ALL_LAYERS in kind.commands:
        properties["records"] = {"type": "array", "items": {"type": "object"}}
        properties["failures"] = {"type": "object", "additionalProperties": {"type": "string"}}
        properties["notes"] = {"type": "array", "items": {"type": "string"}}
    required = ["command", "version", "tensorflow", "host", "results", "ratios"]
    return {"type": "object", "properties": properties, "required": required}


def _object(required: bool = True, **properties: Schema) -> Schema:
    """The schema of an object; its properties are all required, or all optional."""
    names = {"required": list(properties)} if required else {}
    return {"type": "object", "properties": properties, **names}


def _plan_record() -> Schema:
    """The schema of `PlanResult.document`."""
    prediction, cluster = {"$ref": _ref("Prediction")}, {"$ref": _ref("Shape")}
    point = {
        **_object(required=False, workers=_INTEGER, ps=_INTEGER),
        "description": "The prediction for this number of workers or ps (see `over`).",
    }
    lists: dict[str, tuple[Schema, str]] = {
        "predictions": (
            {"allOf": [prediction, _object(cluster=cluster)]},
            "One for each requested layout, protocol and placement.",
        ),
        "changes": ({"$ref": _ref("Change")}, "Changes to the first cluster that help."),
        "curves": (
            _object(
                side=_STRING,
                placement=_STRING,
                layout=_STRING,
                over={"enum": ["workers", "ps"]},
                bend={
                    "type": ["integer", "null"],
                    "description": "From here on, adding more hardly helps; null: it always helps.",
                },
                points={"type": "array", "items": {"allOf": [prediction, point]}},
            ),
            "Results of --sweep.",
        ),
        "offers": (
            {"allOf": [prediction, _object(cores={"type": "number"}, cluster=cluster)]},
            "Results of --target: the smallest cluster of each kind, with all of its cores.",
        ),
    }
    return _object(
        command={"const": "plan"},
        version={"type": "string", "description": "Of tensorwire."},
        calibration={
            **_object(
                source=_STRING,
                host={"$ref": _ref("Machine")},
                tensorflow=_STRING,
                time={"type": "string", "description": "UTC: 2026-01-31T12:00:00Z."},
            ),
            "description": "The measured costs on which the predictions are based.",
        },
        extrapolation={
            "type": "array",
            "items": _STRING,
            "description": "Where the question is beyond the range of the measurements.",
        },
        job=_object(name=_STRING, source=_STRING),
        seed=_INTEGER,
        case={"type": ["string", "null"], "description": "The value of --case."},
        **{
            name: {"type": "array", "items": items, "description": text}
            for name, (items, text) in lists.items()
        },
    )


def _placement_plan() -> Schema:
    """The schema of `PlacementPlan.to_document`."""
    plan = _object(
        strategy=_STRING,
        ps=_INTEGER,
        bytes_per_ps={"type": "array", "items": _INTEGER},
        bytes_largest_over_mean={"type": "number"},
        variables={
            "type": "array",
            "items": {
                "allOf": [
                    {"$ref": _ref("Variable")},
                    _object(
                        tasks={
                            "type": "array",
                            "items": _INTEGER,
                            "description": "The ps of each part, in the order of rows.",
                        }
                    ),
                ]
            },
        },
    )
    plan["properties"] |= {
        "traffic_bytes_per_step_per_ps": {
            "type": "array",
            "items": {"type": "number"},
            "description": "Only if traffic is known.",
        },
        "traffic_largest_over_mean": {"type": "number"},
    }
    return plan


def _classes(roots: Iterable[type]) -> dict[str, type]:
    """The roots and the dataclasses that they contain, by msgspec's names."""
    found: dict[str, type] = {}
    waiting = list(roots)
    while waiting:
        kind = waiting.pop()
        full_name = f"{kind.__module__}.{kind.__name__}"
        if full_name in found:
            continue
        found[kind.__name__] = found[full_name] = kind
        module = inspect.getmodule(kind)
        for field in dataclasses.fields(kind):
            names = str(field.type).replace("[", " ").replace("]", " ").replace(",", " ").split()
            others = [getattr(module, name, None) for name in names]
            waiting += [each for each in others if dataclasses.is_dataclass(each)]  # type: ignore[misc]
    return found


def _describe(definition: Schema, kind: type) -> None:
    """Adds the docstring of each field of a class to the field's schema."""
    for each in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(each):
            continue
        (source,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        assert isinstance(source, ast.ClassDef)
        for field, text in zip(source.body, source.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
                and field.target.id in definition.get("properties", {})
            ):
                words = " ".join(text.value.value.split())
                definition["properties"][field.target.id]["description"] = words


def text() -> str:
    """The content of the file."""
    return calibration_file.text(schema()) + "\n"


if __name__ == "__main__":
    PATH.write_text(text())
