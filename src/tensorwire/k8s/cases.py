"""The sizes of job that an experiment compares: the published test's four, and a user's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tensorwire.errors import UsageError

_FORM = "cases: [{name: small, workers: 4, ps: 2, workers_per_node: 2}]"


@dataclass(frozen=True)
class JobCase:
    """A number of tasks, which either layout can place."""

    name: str
    workers: int
    ps: int
    workers_per_node: int


# From a test of TensorFlow 1.3 on Kubernetes, in which a server runs ten workers.
PUBLISHED = (
    JobCase("1", 10, 1, 10),
    JobCase("2", 50, 5, 10),
    JobCase("3", 100, 10, 10),
    JobCase("4", 200, 20, 10),
)


def read_cases(path: Path) -> tuple[JobCase, ...]:
    """The cases of a user's file; UsageError says what is wrong with it and shows the form."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not YAML ({_one_line(error)}); its form: {_FORM}") from None
    entries = document.get("cases") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise UsageError(f"{path} has no list `cases`; its form: {_FORM}")
    cases = tuple(_case(entry, path) for entry in entries)
    names = [case.name for case in (*PUBLISHED, *cases)]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{path}: there is more than one case {name}: give it another name")
    return cases


def find_case(name: str, cases: tuple[JobCase, ...]) -> JobCase:
    """The case of that name; UsageError lists those there are."""
    for case in cases:
        if case.name == name:
            return case
    known = ", ".join(case.name for case in cases)
    raise UsageError(f"there is no case {name}; there are {known} (--cases FILE adds your own)")


def _case(entry: Any, path: Path) -> JobCase:
    if not isinstance(entry, dict) or not entry.get("name"):
        raise UsageError(f"{path}: a case has no name; the form: {_FORM}")
    name = str(entry["name"])
    unknown = set(entry) - {"name", "workers", "ps", "workers_per_node"}
    if unknown:
        raise UsageError(f"{path}: case {name}: unknown {', '.join(sorted(unknown))}; {_FORM}")
    numbers = {}
    for key in ("workers", "ps", "workers_per_node"):
        value = entry.get(key, 10 if key == "workers_per_node" else None)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UsageError(f"{path}: case {name}: {key} must be a number from 1; {_FORM}")
        numbers[key] = value
    return JobCase(name, **numbers)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
