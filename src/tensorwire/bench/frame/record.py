"""The results of a benchmark as plain data, and the JSON that scripts read.

The JSON is an interface: fields are added, never renamed. Sizes are in MB and GB of 10^6 and 10^9
bytes.
"""

from __future__ import annotations

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, ClassVar, Generic, TypedDict, TypeVar

import tensorwire
from tensorwire.dataclass_json import from_document, json_text
from tensorwire.errors import TensorwireError
from tensorwire.files import write_whole
from tensorwire.machine import Machine
from tensorwire.report.section import Section


@dataclass(frozen=True)
class StepMs:
    """Percentiles of the step time, in milliseconds, over every measured step."""

    p50: float
    p90: float
    min: float


@dataclass(frozen=True)
class LatencyUs:
    """Percentiles of the request time, in microseconds, over every measured request."""

    p50: float
    p99: float


@dataclass(frozen=True)
class Metric:
    """The one number of a result by which several runs are compared."""

    of: str
    """The case with all settings that matter for a comparison: "one ps, 64 clients, 4096 bytes"."""
    side: str
    value: float
    unit: str
    more_is_better: bool = True


@dataclass(frozen=True)
class Result(ABC):
    """The result of one side in one case. Each experiment derives a dataclass of its own.

    A record of one of its `commands` is decoded as that class.
    """

    commands: ClassVar[tuple[str, ...]] = ()
    more_rounds_by: ClassVar[str] = "--rounds and --iters"
    """The options that make ratios more certain."""

    def __init_subclass__(cls) -> None:
        for command in cls.commands:
            _RESULT_TYPES[command] = cls

    @property
    @abstractmethod
    def metric(self) -> Metric:
        """The main figure, for tables of several runs."""

    @staticmethod
    @abstractmethod
    def section(record: Record[Any]) -> Section:
        """A record of these results as a section, without the parts that all records share."""

    @staticmethod
    def details(record: Record[Any]) -> Sequence[Section]:
        """Additional sections of a page, shown below the main section."""
        return ()


_RESULT_TYPES: dict[str, type[Result]] = {}


class LabDocument(TypedDict):
    """The lab in a record: `LabSettings.document`, and whether it could be applied.

    Rate, delay and CPUs are one value if all hosts have the same, else a list with one per host.
    """

    hosts: int
    rate_mbit_per_s: float | list[float | None] | None
    delay_us: float | list[float | None] | None
    cpus: float | list[float | None] | None
    network: bool
    """True if the lab had a network with links."""
    notes: list[str]
    """Settings that could not be applied."""


@dataclass(frozen=True)
class Ratio:
    """The speed of one side divided by the speed of another."""

    value: float
    """Ratio of the medians over the rounds; above 1: the first is faster."""
    interval: tuple[float, float] | None = None
    """The 95 % confidence interval; None if there was only one round."""


@dataclass(frozen=True)
class Noise:
    """The load by other programs during a measurement, and the scatter of the rounds."""

    load_start: float
    """Load average over the minute before the measurement, from other programs."""
    load_end: float
    """Load average at the end, including the measurement itself."""
    steal: float
    """Share, 0 to 1, of the machine's CPU time that its hypervisor gave to other machines."""
    scatter: Mapping[str, float]
    """The interquartile range of the rounds divided by their median, for each side."""


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


Known = TypeVar("Known")
Result_co = TypeVar("Result_co", bound=Result, covariant=True)


@dataclass(frozen=True)
class Record(Generic[Result_co]):
    """One call of a measuring command.

    `ratios` has a key "a/b" for each comparison; above 1 always means that a is faster.
    `ceilings` has the MB/s of programs without TensorFlow: "tcp", "memcpy", "iperf3".
    """

    command: str
    tensorflow: str | None
    """The version of TensorFlow; None if it was not used."""
    results: Sequence[Result_co]
    ratios: Mapping[str, Ratio]
    version: str = field(default_factory=lambda: tensorwire.__version__)
    host: Machine = field(default_factory=Machine.here)
    ceilings: Mapping[str, float] = field(default_factory=dict)
    transports: Mapping[str, str] = field(default_factory=dict)
    """The transport of each side's tensors: "TCP", "shared memory", or both with shares."""
    noise: Noise | None = None
    lab: LabDocument | None = None
    """The settings of the lab; None outside a lab."""
    time: str = field(default_factory=_now)
    """When it was made, in UTC: "2026-01-31T12:00:00Z"; empty if it was not recorded."""

    def document(self) -> dict[str, Any]:
        """The record for JSON, in a readable order."""
        document: dict[str, Any] = {
            "command": self.command,
            "version": self.version,
            "tensorflow": self.tensorflow,
            "host": dataclasses.asdict(self.host),
            "time": self.time,
            "results": [dataclasses.asdict(result) for result in self.results],
            "ratios": {name: ratio.value for name, ratio in self.ratios.items()},
            "intervals": {
                name: ratio.interval
                for name, ratio in self.ratios.items()
                if ratio.interval is not None
            },
            "ceilings": dict(self.ceilings),
            "noise": None if self.noise is None else dataclasses.asdict(self.noise),
        }
        if self.transports:
            document["transports"] = dict(self.transports)
        if self.lab is not None:
            document["lab"] = dict(self.lab)
        return document

    def to_json(self) -> str:
        """The record as JSON."""
        return json_text(self.document())

    @staticmethod
    def from_json(text: str) -> Record[Result]:
        """Reads what `to_json` wrote.

        Raises:
            TensorwireError: the text is not a record.
        """
        try:
            document = json.loads(text)
        except ValueError as error:
            raise not_a_record(error) from error
        return Record.from_document(document)

    @staticmethod
    def from_document(document: Any) -> Record[Result]:
        """Reads what `document` returned. Fields that older versions did not write may be missing.

        Raises:
            TensorwireError: the document is not a record.
        """
        try:
            result_type: Any = _RESULT_TYPES[document["command"]]
            intervals = document.get("intervals", {})
            time = document.get("time", "")
            if not document["results"] or not isinstance(time, str):
                raise ValueError("it has no results, or its time is not a text")
            return Record(
                command=document["command"],
                version=document["version"],
                tensorflow=document["tensorflow"],
                host=from_document(Machine, document["host"]),
                results=[from_document(result_type, entry) for entry in document["results"]],
                ratios={
                    name: from_document(Ratio, {"value": value, "interval": intervals.get(name)})
                    for name, value in document["ratios"].items()
                },
                ceilings=from_document(dict[str, float], document.get("ceilings", {})),
                transports=from_document(dict[str, str], document.get("transports", {})),
                noise=_optional(Noise, document.get("noise")),
                lab=_optional(LabDocument, document.get("lab")),
                time=time,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise not_a_record(error) from error

    def write(self, path: Path) -> None:
        """Writes the JSON to `path` atomically.

        Raises:
            TensorwireError: the file cannot be written.
        """
        write_whole(path, self.to_json())


def not_a_record(error: Exception) -> TensorwireError:
    """The error for a text that is not a record, because of `error`."""
    return TensorwireError(f"this is no record of a benchmark: {error!r}")


def _optional(kind: type[Known], document: Any) -> Known | None:
    return None if document is None else from_document(kind, document)
