"""The results of a benchmark as plain data, and the JSON that scripts read.

The JSON is an interface: fields are added, never renamed. Sizes are in MB and GB of 10^6 and 10^9
bytes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, ClassVar, Generic, TypedDict, TypeVar

import tensorwire
from tensorwire.bench.frame import columns
from tensorwire.bench.frame.variants import TENSOR_FUSE, variant_name
from tensorwire.dataclass_json import from_document, json_text
from tensorwire.errors import TensorwireError
from tensorwire.machine import Machine
from tensorwire.report.section import Section
from tensorwire.units import data_size


@dataclass(frozen=True)
class Metric:
    """The one number of a result by which several runs are compared."""

    of: str
    """The case with all settings that matter for a comparison: "one ps, 64 clients, 4096 bytes"."""
    variant: str
    value: float
    unit: str
    more_is_better: bool = True


def words(template: str) -> Any:
    """A property of a result: the template, with the result as {0}: "Streams: {0.streams}"."""
    return property(template.format)


@dataclass(frozen=True)
class Result:
    """The result of one variant in one case. Each experiment derives a dataclass of its own.

    A record of one of its `commands` is decoded as that class. Its fields are the JSON; those
    annotated with a `Column` are shown, by `columns.table` and `columns.charts`.
    """

    commands: ClassVar[tuple[str, ...]] = ()
    more_rounds_by: ClassVar[str] = "--rounds and --iters"
    """The options that make ratios more certain."""
    figure: ClassVar[str]
    """The column by which runs are compared; of percentiles the bar of their chart."""
    less_is_better: ClassVar[bool] = False
    subject: ClassVar[str] = "protocol"
    """The header of the variants' names."""
    group_header: ClassVar[str] = "case"
    over_sizes: ClassVar[str] = ""
    """The title of the curves over the sizes."""

    def __init_subclass__(cls) -> None:
        for command in cls.commands:
            _RESULT_TYPES[command] = cls

    @property
    def title(self) -> str:
        """What was measured, as the title of a table."""
        return self.commands[0]

    @property
    def does(self) -> str:
        """The start of a sentence that is completed by "2.80 times as fast as grpc"."""
        return ""

    @property
    def of(self) -> str:
        """The case with all settings that matter for a comparison of runs."""
        return self.title

    @property
    def group(self) -> str:
        """The case, where a record may have several: the size of a message, if it has one."""
        return "" if self.size_bytes is None else data_size(self.size_bytes)

    @property
    def size_bytes(self) -> float | None:
        """The size of a message, where several sizes are several cases."""
        return None

    @property
    def name(self) -> str:
        """The variant's name; a result has its protocol, and the rewrites of its graphs."""
        of: Any = self
        rewrites = getattr(of, "rewrites", ()) or (
            (TENSOR_FUSE,) if getattr(of, "tensor_fuse", False) else ()
        )
        return variant_name(of.protocol, rewrites)

    @property
    def metric(self) -> Metric:
        """The main figure, for tables of several runs."""
        main = next(each for each in columns.columns(type(self)) if each.field == self.figure)
        value, unit = getattr(self, self.figure), main.unit
        if isinstance(value, columns.Percentiles):
            value, unit = getattr(value, value.bar[1]), value.unit
        return Metric(self.of, self.name, value, unit, more_is_better=not self.less_is_better)

    @classmethod
    def section(cls, record: Record[Any]) -> Section:
        """A record of these results as a section, without the parts that all records share."""
        first, of_cases = record.results[0], columns.groups(record.results)
        case = f", {first.group}" if len(of_cases) == 1 and first.group else ""
        over_sizes = len(of_cases) > 1 and first.size_bytes is not None
        tables = [columns.table(f"{first.title}{case}", record.results, record.baselines)]
        return Section(
            f"{first.title}{case}{' over sizes' if over_sizes else ''}",
            "" if over_sizes else compared(record.ratios, first.does),
            columns.charts(record.results, record.baselines),
            tables,
        )

    @staticmethod
    def details(record: Record[Any]) -> Sequence[Section]:
        """Additional sections of a page, shown below the main section."""
        return ()


def compared(ratios: Mapping[str, Ratio], does: str) -> str:
    """ "grpc++ takes small steps 2.80 (tiny) and 5.24 (many) times as fast as grpc."."""
    of_variant: dict[str, list[str]] = {}
    for name, ratio in ratios.items():
        first, _, second = name.partition("/")
        against, _, case = second.partition(" ")
        if against == "grpc" and not case.startswith("fused"):
            text = f"{ratio.value:.2f}" + (f" ({case})" if case else "")
            of_variant.setdefault(first, []).append(text)
    clauses = [f"{first} {' and '.join(texts)} times" for first, texts in of_variant.items()]
    if not clauses or not does:
        return ""
    first = next(iter(of_variant))
    clauses[0] = clauses[0].replace(first, f"{first} {does}", 1) + " as fast as grpc"
    return ", ".join(clauses) + "."


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
    """The speed of one variant divided by the speed of another."""

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
    """The interquartile range of the rounds divided by their median, for each variant."""


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


Result_co = TypeVar("Result_co", bound=Result, covariant=True)


@dataclass(frozen=True)
class Record(Generic[Result_co]):
    """One call of a measuring command.

    `ratios` has a key "a/b" for each comparison; above 1 always means that a is faster.
    `baselines` has the MB/s of programs without TensorFlow: "tcp", "memcpy", "iperf3".
    """

    command: str
    tensorflow: str | None
    """The version of TensorFlow; None if it was not used."""
    results: Sequence[Result_co]
    ratios: Mapping[str, Ratio]
    version: str = field(default_factory=lambda: tensorwire.__version__)
    host: Machine = field(default_factory=Machine.here)
    baselines: Mapping[str, float] = field(default_factory=dict)
    transports: Mapping[str, str] = field(default_factory=dict)
    """The transport of each variant's tensors: "TCP", "shared memory", or both with shares."""
    noise: Noise | None = None
    lab: LabDocument | None = None
    """The settings of the lab; None outside a lab."""
    time: str = field(default_factory=_now)
    """When it was made, in UTC: "2026-01-31T12:00:00Z"; empty if it was not recorded."""
    records: Sequence[Record[Any]] = ()
    """Of a call that runs several commands (`bench all`): the record of each."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """Why one of them has no record, by its name."""
    notes: Sequence[str] = ()

    @property
    def kind(self) -> type[Result]:
        """The class of its results."""
        return type(self.results[0]) if self.results else _RESULT_TYPES[self.command]

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
            "ceilings": dict(self.baselines),
            "noise": None if self.noise is None else dataclasses.asdict(self.noise),
        }
        if self.transports:
            document["transports"] = dict(self.transports)
        if self.lab is not None:
            document["lab"] = dict(self.lab)
        if self.records or self.failures:
            document["records"] = [record.document() for record in self.records]
            document["failures"] = dict(self.failures)
            document["notes"] = list(self.notes)
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
            raise _not_a_record(error) from error
        return Record.from_document(document)

    @staticmethod
    def from_document(document: Any) -> Record[Result]:
        """Reads what `document` returned. Fields that older versions did not write may be missing.

        Raises:
            TensorwireError: the document is not a record.
        """
        try:
            generic: Any = Record
            kind = generic[_RESULT_TYPES[document["command"]]]
            intervals = document.get("intervals", {})
            ratios = {
                name: {"value": value, "interval": intervals.get(name)}
                for name, value in document["ratios"].items()
            }
            if not document["results"]:
                raise ValueError("it has no results")
            # What has always been written must be there; the rest has a default.
            always = {name: document[name] for name in ("version", "host", "tensorflow")}
            fields = {"time": "", **document, **always, "ratios": ratios}
            parts = [Record.from_document(each) for each in fields.pop("records", ())]
            record: Record[Result] = from_document(
                kind, {**fields, "baselines": document.get("ceilings", {})}
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _not_a_record(error) from error
        return dataclasses.replace(record, records=parts) if parts else record


def _not_a_record(error: Exception) -> TensorwireError:
    return TensorwireError(f"this is no record of a benchmark: {error!r}")
