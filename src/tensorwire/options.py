"""Fields of a dataclass that are options of a command: what a plan or a job takes, said once.

`click_extensions.options_of` makes the command's options of them; type and default are the field's.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Option:
    """How a field is written on a command line."""

    name: str
    """"--workers-per-node", "--namespace -n"; an argument without dashes."""
    field: str
    kind: Any
    """The field's type, without None."""
    default: Any
    help: str
    metavar: str | None
    least: float | None
    above: float | None
    """Like `least`, which is not allowed itself."""
    most: float | None
    choices: Sequence[str]
    repeated: bool
    show_default: bool
    """False: the help says what holds if it is not given, and the command then gets None."""
    default_text: str | None
    """The default on the command line, if it is not the field's."""
    parse: Callable[[str], Any] | None
    """Makes the field's value of the text."""
    path: Literal["file", "folder", "any"]
    """What a Path may name."""
    section: str
    """The heading of the help under which it stands; empty: among the others."""


def option(
    default: Any,
    help: str | None = None,
    *,
    name: str = "",
    metavar: str | None = None,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    choices: Sequence[str] = (),
    repeated: bool = False,
    show_default: bool = True,
    default_text: str | None = None,
    parse: Callable[[str], Any] | None = None,
    path: Literal["file", "folder", "any"] = "file",
    section: str = "",
) -> Any:
    """A field with this default that is also an option; `...` as the default: it must be given."""
    metadata = {"option": {**locals()}}
    if default is ...:
        return dataclasses.field(metadata=metadata)
    if isinstance(default, dict):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def options(record: type) -> Iterator[Option]:
    """The options of a dataclass, in the order of its fields."""
    hints = typing.get_type_hints(record)
    for field in dataclasses.fields(record):
        if (settings := field.metadata.get("option")) is None:
            continue
        kind = hints[field.name]
        if type(None) in typing.get_args(kind):
            kind = next(each for each in typing.get_args(kind) if each is not type(None))
        name = settings["name"] or f"--{field.name.replace('_', '-')}"
        yield Option(**{**settings, "name": name, "field": field.name, "kind": kind})


def required() -> Any:
    """A field without a default that is no option, between those that are."""
    return dataclasses.field()
