"""Dataclasses to JSON and back."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tensorwire.errors import UsageError

Record = TypeVar("Record")


def to_document(value: Any) -> Any:
    """What `json.dumps` takes; floats with six significant digits, for more would be noise."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: to_document(getattr(value, field.name)) for field in fields}
    if isinstance(value, (list, tuple)):
        return [to_document(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def from_document(record: type[Record], document: Any) -> Record:
    """Reads what `to_document` or `dataclasses.asdict` made; fields that it does not know are left
    out.

    Raises:
        TypeError, ValueError: the document is no such record.
    """
    if not isinstance(document, Mapping):
        raise TypeError(f"{record.__name__} is no object: {document!r}")
    known: Any = record
    hints = _hints(known)
    values = {
        field.name: _value(hints[field.name], document[field.name])
        for field in dataclasses.fields(known)
        if field.name in document
    }
    return record(**values)


def of_command(command: str, record: type[Record], document: Any) -> Record:
    """Reads a record that says of which command it is, as "command".

    Raises:
        UsageError: it is of none, or of another, or something is missing.
    """
    if not isinstance(document, Mapping) or document.get("command") != command:
        raise UsageError(f"this is no record of `{command}`")
    try:
        return from_document(record, document)
    except (TypeError, ValueError) as error:
        raise UsageError(f"this is no record of `{command}`: {error}") from error


def arguments_of(function: Callable[..., Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of `function` that a document has, by the function's annotations.

    Raises:
        TypeError, ValueError: one is unknown or of another type.
    """
    hints = _hints(function)
    if unknown := document.keys() - hints.keys():
        raise TypeError(f"{function.__qualname__} takes no {min(unknown)!r}")
    return {name: _value(hints[name], value) for name, value in document.items()}


@functools.cache
def _hints(annotated: Any) -> dict[str, Any]:
    return typing.get_type_hints(annotated)


def _value(hint: Any, value: Any) -> Any:
    if isinstance(hint, types.UnionType):
        if value is None:
            return None
        (hint,) = (each for each in typing.get_args(hint) if each is not types.NoneType)
    if dataclasses.is_dataclass(hint):
        return from_document(typing.cast("type[Any]", hint), value)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Mapping:
        if not isinstance(value, Mapping):
            raise TypeError(f"no object: {value!r}")
        return {name: _value(arguments[1], each) for name, each in value.items()}
    if origin in (Sequence, tuple):
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"no list: {value!r}")
        if origin is tuple and arguments[-1] is not Ellipsis:
            return tuple(_value(each, item) for each, item in zip(arguments, value, strict=True))
        return tuple(_value(arguments[0], each) for each in value)
    if isinstance(hint, type) and issubclass(hint, tuple):  # a NamedTuple
        return hint(*map(_value, _hints(hint).values(), value))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint in (bool, int, float, str) and type(value) is not hint:
        raise TypeError(f"{value!r} is no {hint.__name__}")
    return value
