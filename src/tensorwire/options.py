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

    default: Any
    help: str | None = None
    name: str = ""
    """"--workers-per-node", "--namespace -n"; an argument without dashes; empty: the field's."""
    field: str = ""
    kind: Any = None
    """The field's type, without None."""
    metavar: str | None = None
    least: float | None = None
    above: float | None = None
    """Like `least`, which is not allowed itself."""
    most: float | None = None
    choices: Sequence[str] = ()
    repeated: bool = False
    show_default: bool = True
    """False: the help says what holds if it is not given, and the command then gets None."""
    default_text: str | None = None
    """The default on the command line, if it is not the field's."""
    parse: Callable[[str], Any] | None = None
    """Makes the field's value of the text."""
    path: Literal["file", "folder", "any"] = "file"
    """What a Path may name."""
    section: str = ""
    """The heading of the help under which it stands, by the record's SECTIONS; may be empty."""


def option(default: Any, help: str | None = None, **settings: Any) -> Any:
    """A field with this default that is also an option; `...` as the default: it must be given.

    `settings` are other fields of `Option`.
    """
    metadata = {"option": Option(default, help, **settings)}
    if default is ...:
        return dataclasses.field(metadata=metadata)
    if isinstance(default, dict):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def options(record: type) -> Iterator[Option]:
    """The options of a dataclass, in the order of its fields."""
    hints = typing.get_type_hints(record)
    sections = {
        field: title for title, of in getattr(record, "SECTIONS", {}).items() for field in of
    }
    for field in dataclasses.fields(record):
        if (made := field.metadata.get("option")) is None:
            continue
        kind = hints[field.name]
        if type(None) in typing.get_args(kind):
            kind = next(each for each in typing.get_args(kind) if each is not type(None))
        yield dataclasses.replace(
            made,
            name=made.name or f"--{field.name.replace('_', '-')}",
            field=field.name,
            kind=kind,
            section=sections.get(field.name, ""),
        )


def required() -> Any:
    """A field without a default that is no option, between those that are."""
    return dataclasses.field()
