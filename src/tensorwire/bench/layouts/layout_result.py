"""The result of `k8s compare` for one layout, and its presentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorwire.bench.frame.record import Metric, Ratio, Record, Result
from tensorwire.bench.frame.showing import times
from tensorwire.doctor.evidence import Finding
from tensorwire.report.section import Bar, Bars, Section, Table
from tensorwire.units import number


@dataclass(frozen=True)
class TaskLoad:
    """The resources that one task of a job used while it trained."""

    task: str
    """"ps:0"."""
    node: str
    cores: float
    """CPU seconds per second."""
    cpu_limit: float
    """The CPU limit of the task's pod."""
    memory_mb: float
    """Resident memory at the end, in MB of 10^6 bytes."""
    in_mb_per_s: float
    out_mb_per_s: float


@dataclass(frozen=True)
class LayoutResult(Result):
    """`k8s compare`: one layout of a case, with one placement of the variables."""

    commands = ("k8s compare",)
    more_rounds_by = "--rounds"

    layout: str
    """"colocated" or "isolated"."""
    placement: str
    protocol: str
    case: str
    case_workers: int
    """The number of workers in the case, of which `workers` were run."""
    workers: int
    ps: int
    nodes: int
    seconds: float
    """The time for which each job was observed."""
    steps_per_s: float
    """Rate of all workers together; the median over the rounds."""
    between_nodes_mb_per_s: float
    """Traffic between tasks on different nodes. This field and the following ones are from the
    round with median speed.
    """
    tasks: tuple[TaskLoad, ...]
    step: str | None
    """The parts of a worker's step, as text; None if they are unknown."""
    verdicts: tuple[Finding, ...]
    """Findings of the doctor, the most expensive first."""

    @property
    def metric(self) -> Metric:
        of = f"Case {self.case}, {self.workers} workers, {self.ps} ps, {self.protocol}"
        return Metric(of, f"{self.layout} {self.placement}", self.steps_per_s, "steps/s")

    @staticmethod
    def section(record: Record[Any]) -> Section:
        """All layouts in one table, and all tasks in another."""
        results = record.results
        first = results[0]
        rows = [
            [
                _name(r, results),
                str(r.nodes),
                number(r.steps_per_s),
                number(r.between_nodes_mb_per_s),
                number(_sum(r, "ps")),
                number(_sum(r, "worker", "chief")),
            ]
            for r in results
        ]
        columns = ["layout", "nodes", "steps/s", "MB/s between nodes", "CPUs, ps", "CPUs, workers"]
        tables = [
            Table(f"{_case(first)}, on {first.protocol}", columns, [rows]),
            _tasks_table(results),
        ]
        return Section(
            f"{_case(first)}: layouts",
            _headline(record.ratios, results),
            [
                Bars(
                    "Training steps a second, of all workers",
                    "steps/s",
                    [Bar(_name(r, results), r.steps_per_s, r.layout) for r in results],
                )
            ],
            tables,
            [*_scaled(first), *(f"{_name(r, results)}: {_verdict(r.verdicts)}" for r in results)],
        )

    @staticmethod
    def details(record: Record[Any]) -> list[Section]:
        """A section for each layout: the load of its tasks, and the doctor's findings."""
        return [_detail(each, record.results) for each in record.results]


_NOTHING = "the doctor found nothing"


def _tasks_table(results: Sequence[LayoutResult]) -> Table:
    """One row per task."""
    return Table(
        "Resources of each task (MB = 10^6 bytes)",
        ["layout", "task", "node", "CPUs", "of", "memory MB", "in MB/s", "out MB/s"],
        [
            [
                [
                    _name(r, results),
                    load.task,
                    load.node,
                    f"{load.cores:.2f}",
                    f"{load.cpu_limit:g}",
                    f"{load.memory_mb:.0f}",
                    number(load.in_mb_per_s),
                    number(load.out_mb_per_s),
                ]
                for load in r.tasks
            ]
            for r in results
        ],
        text_columns=3,
    )


def _detail(result: LayoutResult, results: Sequence[LayoutResult]) -> Section:
    cpu = [Bar(f"{t.task}, {t.node}", t.cores, result.layout) for t in result.tasks]
    traffic = [
        Bar(f"{t.task}, {t.node}", t.in_mb_per_s + t.out_mb_per_s, result.layout)
        for t in result.tasks
    ]
    notes = [
        f"{number_of}. {each.title} ({_weight(each)}). {' '.join(each.evidence)} {each.change}"
        for number_of, each in enumerate(result.verdicts, 1)
    ]
    if result.step:
        notes.append(f"A worker's step: {result.step}.")
    return Section(
        f"{_name(result, results)}: {result.nodes} node{'s' * (result.nodes != 1)}",
        _verdict(result.verdicts),
        [
            Bars("CPU of each task", "CPUs", cpu, "CPU seconds per second."),
            Bars("Traffic of each task, both directions", "MB/s", traffic, "MB = 10^6 bytes."),
        ],
        notes=notes,
    )


def _headline(ratios: Mapping[str, Ratio], results: Sequence[LayoutResult]) -> str:
    """Compares the layouts under the first placement, and the placements if there are several."""
    sentences = []
    for name, ratio in ratios.items():
        first, second = name.split("/")
        if ratio.interval is None:
            sentences.append(
                f"In one round, {first} ran {ratio.value:.2f} times the steps a second of {second}."
            )
        elif ratio.interval[0] < 1 < ratio.interval[1]:
            sentences.append(f"The rounds do not show whether {first} or {second} is faster.")
        else:
            sentences.append(f"{first} runs {times(ratio)} the steps a second of {second}.")
    return " ".join(sentences)


def _case(result: LayoutResult) -> str:
    return f"Case {result.case}, {result.workers} workers and {result.ps} ps"


def _scaled(result: LayoutResult) -> list[str]:
    if result.workers == result.case_workers:
        return []
    return [f"scaled down: the case has {result.case_workers} workers, and {result.workers} ran"]


def _name(result: LayoutResult, results: Sequence[LayoutResult]) -> str:
    several = len({each.placement for each in results}) > 1
    return f"{result.layout} {result.placement}" if several else result.layout


def _sum(result: LayoutResult, *jobs: str) -> float:
    return sum(load.cores for load in result.tasks if load.task.partition(":")[0] in jobs)


def _verdict(verdicts: Sequence[Finding]) -> str:
    if not verdicts:
        return _NOTHING
    return f"{verdicts[0].title} ({_weight(verdicts[0])}): {verdicts[0].change}"


def _weight(verdict: Finding) -> str:
    return "a risk" if verdict.cost is None else f"costs {verdict.cost:.0%} of a step"
