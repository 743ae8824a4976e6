"""An experiment: variants that take turns in its cases, and the record of their times.

All variants start before the first one is measured, and run as long as the experiment. In each
round of a case every variant runs a block of steps, one after the other. Other load on the machine
then affects all variants equally, so that ratios are valid even if times are not. Cases that are
read next to each other take turns within each round, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from tensorwire.bench.frame.hosts import THIS_MACHINE, HostPool
from tensorwire.bench.frame.record import LabDocument, Ratio, Record, Result
from tensorwire.bench.frame.statistics import (
    NoiseWatch,
    Rounds,
    by_variant_and_case,
    compare_cases,
)
from tensorwire.bench.frame.tasks import Unwatched, Watcher
from tensorwire.bench.frame.variants import PAIRS, PROTOCOLS, Setting, settings
from tensorwire.options import option

What = TypeVar("What")
SomeResult = TypeVar("SomeResult", bound=Result)


@dataclass(frozen=True)
class Case(Generic[What]):
    """One case of an experiment, which all variants run in several rounds."""

    name: str
    what: What
    steps: Sequence[int | None]
    """The number of steps of each round; None: as many as fill a round, found in the warm-up."""


class Variant(ABC, Generic[What, SomeResult]):
    """One of those that are compared. A context manager, which ends its processes."""

    name: str
    """The variant's name in tables and ratios."""
    tensorflow: str | None = None
    """The variant's version of TensorFlow, set when it has started."""

    def __enter__(self) -> Any:
        """Starts the variant's processes without waiting for them."""
        return self

    def __exit__(self, *exception: Any) -> None:
        """Ends the variant's processes."""

    def wait_started(self, watcher: Watcher) -> None:
        """Waits until the variant can be measured."""

    def takes_part(self, what: What) -> bool:
        """True if this variant is measured in this case."""
        return True

    def warm_up(self, what: What) -> None:
        """Runs steps that do not count."""

    @abstractmethod
    def block(self, what: What, steps: int | None) -> Sequence[float]:
        """Runs this number of steps; returns the seconds of each step, or one mean."""

    def verify(self, what: What) -> None:
        """Raises TensorwireError unless the steps had the right effect."""

    def transport(self) -> str | None:
        """The transport of its tensors so far (`transport_of`); None if it has no tensors."""
        return None

    def result(self, case: Case[What], rounds: Rounds) -> SomeResult | None:
        """The variant's result for the record; None if it has none."""
        return None

    def baseline_mb_per_s(self, case: Case[What], rounds: Rounds) -> float | None:
        """MB/s (10^6 bytes), if the variant is a baseline, which moves bytes without TensorFlow."""
        return None


def rounds_option(default: int) -> Any:
    """The field `rounds` of an experiment with another default."""
    return option(default, "Rounds; in each the protocols take turns (A B A B …).", least=1)


@dataclass(frozen=True, kw_only=True)
class Experiment(ABC, Generic[What, SomeResult]):
    """One call of an experiment. The class has the command: its docstring is the command's help.

    A subclass refuses what cannot be measured (UsageError) when it is made. Its `option` fields
    are the command's options, besides those of `takes`.
    """

    command: ClassVar[str]
    takes: ClassVar[frozenset[str]] = frozenset({"protocols", "tensor_fuse", "lab", "transport"})
    """Which of the options that experiments share it has; also possible: "rewrites"."""
    default_rewrites: ClassVar[tuple[str, ...]] = ()
    """What the command measures without --rewrites."""
    cases_take_turns: ClassVar[bool] = False
    back_and_forth: ClassVar[bool] = False
    """These two as in `measure`."""

    rounds: int = rounds_option(10)
    protocols: tuple[str, ...] = PROTOCOLS
    rewrites: tuple[str, ...] = ()
    """The last protocol is measured once more with each of these (`parse_rewrites`)."""
    transport: str = "auto"
    notes: tuple[str, ...] = ()
    """What the user should know of this call."""

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The setting of each variant."""
        return settings(self.protocols, self.rewrites, self.transport)

    @property
    @abstractmethod
    def cases(self) -> Sequence[Case[What]]:
        """What is measured."""

    @abstractmethod
    def variants(self, hosts: HostPool) -> Sequence[Variant[What, Any]]:
        """What is compared.

        Raises:
            TensorwireError: this machine cannot run them.
        """

    def pairs(self, names: Sequence[str], hosts: HostPool) -> Sequence[tuple[str, str]]:
        """The pairs of variants to compare; the first should be faster."""
        return PAIRS

    @property
    def blocks(self) -> int:
        """The number of `advance` calls that the watcher gets."""
        return sum(len(case.steps) for case in self.cases)

    def run(
        self, watcher: Watcher | None = None, hosts: HostPool = THIS_MACHINE
    ) -> Record[SomeResult]:
        """Measures; `watcher.advance` is called `blocks` times.

        Raises:
            TensorwireError: a task failed or did not answer in time.
        """
        variants = self.variants(hosts)
        record: Record[SomeResult] = measure(
            self.command,
            variants,
            self.cases,
            watcher or Unwatched(),
            pairs=self.pairs([each.name for each in variants], hosts),
            lab=hosts.document,
            back_and_forth=self.back_and_forth,
            cases_take_turns=self.cases_take_turns,
        )
        more = self.more_ratios(variants)
        return dataclasses.replace(record, ratios={**record.ratios, **more})

    def more_ratios(self, variants: Sequence[Any]) -> Mapping[str, Ratio]:
        """Ratios of other figures than the seconds of the rounds."""
        return {}

    @classmethod
    def of_options(cls, given: Mapping[str, Any]) -> Any:
        """The experiment that a command line asks for: the fields that it sets."""
        return cls(**given)

    def last_line(self, record: Record[SomeResult]) -> str | None:
        """What the command prints last if several hosts took part."""
        return None


def measure(
    command: str,
    variants: Sequence[Variant[What, SomeResult]],
    cases: Sequence[Case[What]],
    watcher: Watcher,
    *,
    pairs: Sequence[tuple[str, str]] = PAIRS,
    lab: LabDocument | None = None,
    back_and_forth: bool = False,
    cases_take_turns: bool = False,
) -> Record[SomeResult]:
    """Measures; `watcher.advance` is called once for each round of each case.

    With one case a ratio is called "grpc++/grpc"; with several, "grpc++/grpc tiny" and so on.

    Args:
        pairs: names of variants to compare; the first should be faster.
        lab: the lab's settings for the record.
        back_and_forth: True if the order of variants alternates: A B, B A instead of A B, A B.
        cases_take_turns: True if each round has a block of each case, instead of all rounds of one
            case before the next. The cases then have the same number of rounds.

    Raises:
        TensorwireError: a task failed or did not answer in time.
    """
    noise = NoiseWatch()
    rounds: dict[str, dict[str, list[Sequence[float]]]] = {}
    results: list[SomeResult] = []
    baselines: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        watcher.activity("starting the tasks")
        for variant in variants:
            stack.enter_context(variant)
        for variant in variants:
            variant.wait_started(watcher)
        for group in [cases] if cases_take_turns else [[case] for case in cases]:
            prefix = f"{group[0].name}: " if len(group) < len(cases) else ""
            rounds |= _take_turns(group, variants, watcher, prefix, back_and_forth)
        transports = {each.name: used for each in variants if (used := each.transport())}
        for case in cases:
            for variant in variants:
                if variant.name not in rounds[case.name]:
                    continue
                of_variant = rounds[case.name][variant.name]
                if (row := variant.result(case, of_variant)) is not None:
                    results.append(row)
                if (rate := variant.baseline_mb_per_s(case, of_variant)) is not None:
                    baselines[variant.name] = rate
        tensorflow = next((each.tensorflow for each in variants if each.tensorflow), None)
    return Record(
        command=command,
        tensorflow=tensorflow,
        results=results,
        ratios=compare_cases(rounds, pairs),
        baselines=baselines,
        transports=transports,
        noise=noise.seen(by_variant_and_case(rounds)),
        lab=lab,
    )


def _take_turns(
    cases: Sequence[Case[What]],
    variants: Sequence[Variant[What, SomeResult]],
    watcher: Watcher,
    prefix: str,
    back_and_forth: bool,
) -> dict[str, dict[str, list[Sequence[float]]]]:
    """Runs all rounds; returns seconds by case and variant. A round runs all cases on all."""
    taking_part = [(case, [v for v in variants if v.takes_part(case.what)]) for case in cases]
    rounds: dict[str, dict[str, list[Sequence[float]]]] = {
        case.name: {variant.name: [] for variant in of_case} for case, of_case in taking_part
    }
    watcher.activity(f"{prefix}warming up")
    for case, of_case in taking_part:
        for variant in of_case:
            variant.warm_up(case.what)
    watcher.activity(f"{prefix}measuring")
    for number, steps_of_cases in enumerate(zip(*(case.steps for case in cases), strict=True)):
        for (case, of_case), steps in zip(taking_part, steps_of_cases, strict=True):
            for variant in reversed(of_case) if back_and_forth and number % 2 else of_case:
                rounds[case.name][variant.name].append(variant.block(case.what, steps))
            watcher.advance()
    for case, of_case in taking_part:
        for variant in of_case:
            variant.verify(case.what)
    return rounds
