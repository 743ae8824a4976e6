"""Dataclasses to JSON and back, so that what was looked at can be judged again later."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

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
    """Reads what `to_document` made; fields that it does not know are left out.

    Raises:
        TypeError, ValueError: the document is no such record.
    """
    if not isinstance(document, Mapping):
        raise TypeError(f"{record.__name__} is no object: {document!r}")
    hints = typing.get_type_hints(record)
    fields: Any = record
    values = {
        field.name: _value(hints[field.name], document[field.name])
        for field in dataclasses.fields(fields)
        if field.name in document
    }
    return record(**values)


def _value(hint: Any, value: Any) -> Any:
    if isinstance(hint, types.UnionType):
        if value is None:
            return None
        (hint,) = (each for each in typing.get_args(hint) if each is not types.NoneType)
    if dataclasses.is_dataclass(hint):
        return from_document(typing.cast("type[Any]", hint), value)
    if typing.get_origin(hint) is Sequence:
        (element,) = typing.get_args(hint)
        if not isinstance(value, list):
            raise TypeError(f"no list: {value!r}")
        return tuple(_value(element, each) for each in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint in (bool, int, float, str) and type(value) is not hint:
        raise TypeError(f"{value!r} is no {hint.__name__}")
    return value
