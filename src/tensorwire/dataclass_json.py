"""Dataclasses to JSON and back: decoded and checked by their annotations."""

from __future__ import annotations

import dataclasses
import functools
import json
import threading
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from tensorwire.errors import UsageError

Record = TypeVar("Record")


def to_document(value: Any) -> Any:
    """A value for `json.dumps`; floats are rounded to six significant digits."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: to_document(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {name: to_document(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_document(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def from_document(record: type[Record], document: Any) -> Record:
    """Reads what `to_document` or `dataclasses.asdict` made; unknown fields are ignored.

    Raises:
        ValueError: the document does not fit `record`.
    """
    _learn(record)
    try:
        return msgspec.convert(document, record)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


_LEARNING = threading.Lock()
_LEARNT: set[Any] = set()


def _learn(record: Any) -> None:
    """msgspec keeps what it learns of a dataclass in the class before it has learnt all of it: a
    second thread that comes in this moment crashes (seen with msgspec 0.22).
    """
    if record not in _LEARNT:
        with _LEARNING:
            msgspec.json.Decoder(record)
        _LEARNT.add(record)


def of_command(command: str, record: type[Record], document: Any) -> Record:
    """Reads a record whose field "command" must be `command`.

    Raises:
        UsageError: "command" is missing or different, or another field is missing.
    """
    if not isinstance(document, Mapping) or document.get("command") != command:
        raise UsageError(f"this file is not a record of `{command}`")
    try:
        return from_document(record, document)
    except ValueError as error:
        raise UsageError(f"this file is not a record of `{command}`: {error}") from error


def arguments_of(function: Callable[..., Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of `function` that a document has, by the function's annotations.

    Raises:
        ValueError: one is unknown or of another type.
    """
    hints = _hints(function)
    if unknown := document.keys() - hints.keys():
        raise ValueError(f"{function.__qualname__} takes no {min(unknown)!r}")
    return {name: from_document(hints[name], value) for name, value in document.items()}


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(function)


def json_text(document: dict[str, Any]) -> str:
    """The JSON text of a record: one line per field, floats with six significant digits."""
    return json.dumps(to_document(document), indent=1) + "\n"
