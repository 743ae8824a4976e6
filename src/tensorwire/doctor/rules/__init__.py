"""The rules: functions from parts of the evidence to a finding, or to None, with a name.

Every module of this folder is imported, and registers its own.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tensorwire.doctor.evidence import Evidence, Finding

Find = Callable[..., "Finding | None"]
SomeFind = TypeVar("SomeFind", bound=Find)


@dataclass(frozen=True)
class Rule:
    """A rule, which is silent where another one of `unless` has found the cause behind it."""

    find: Find
    unless: Sequence[str]

    def finding(self, evidence: Evidence) -> Finding | None:
        """What the function finds in the parts of the evidence that its parameters name.

        A part for which the function has no default must be there.
        """
        parameters = inspect.signature(self.find).parameters.values()
        parts = {each.name: getattr(evidence, each.name) for each in parameters}
        if any(parts[p.name] is None and p.default is inspect.Parameter.empty for p in parameters):
            return None
        return self.find(**parts)


RULES: dict[str, Rule] = {}
"""By name."""


def rule(name: str, unless: Sequence[str] = ()) -> Callable[[SomeFind], SomeFind]:
    """Registers a function of a module in `doctor/rules` as the rule of that name.

    The function's parameters are fields of `Evidence`.
    """

    def register(find: SomeFind) -> SomeFind:
        RULES[name] = Rule(find, unless)
        return find

    return register


def findings(evidence: Evidence) -> list[Finding]:
    """What all rules find, each at most once."""
    found: dict[str, Finding | None] = {}

    def find(name: str) -> Finding | None:
        if name not in found:
            each = RULES[name]
            is_silent = any(find(other) is not None for other in each.unless)
            finding = None if is_silent else each.finding(evidence)
            found[name] = None if finding is None else dataclasses.replace(finding, rule=name)
        return found[name]

    return [finding for name in RULES if (finding := find(name)) is not None]


for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
