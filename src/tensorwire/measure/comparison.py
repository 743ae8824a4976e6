"""Sides compared: their ratios, how firm these are, and when to doubt them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tensorwire.measure.contenders import PAIRS
from tensorwire.measure.record import Machine, Noise, Ratio
from tensorwire.measure.section import Table

if TYPE_CHECKING:
    from tensorwire.measure.statistics import Rounds

WIDE = 0.25
"""An interval this wide, as a share of its ratio, deserves a warning."""
_BUSY_LOAD = 0.5
_MUCH_STEAL = 0.02


def times(ratio: Ratio) -> str:
    """ "3.26 times (3.10 to 3.41)"."""
    return f"{ratio.value:.2f} times{in_brackets(ratio)}"


def ratio_table(ratios: Mapping[str, Ratio]) -> list[Table]:
    """A row a comparison; no table without a comparison."""
    if not ratios:
        return []
    rows = [[name, f"{ratio.value:.2f}", interval(ratio)] for name, ratio in ratios.items()]
    columns = ["above 1: the first is faster", "ratio of medians", "95 % interval"]
    return [Table("How many times as fast", columns, [rows])]


def interval(ratio: Ratio) -> str:
    """ "3.10 to 3.41", or "-" where one round cannot say."""
    if ratio.interval is None:
        return "-"
    low, high = ratio.interval
    return f"{low:.2f} to {high:.2f}"


def doubts(ratios: Mapping[str, Ratio], more: str = "--rounds and --iters") -> list[str]:
    """A warning for each ratio that the rounds do not support; `more` is what would."""
    found = [
        f"{name}: {reason}; more {more} give a firmer figure"
        for name, ratio in ratios.items()
        if (reason := doubt(ratio))
    ]
    if unknown := [name for name, ratio in ratios.items() if ratio.interval is None]:
        found.append(f"how firm {', '.join(unknown)} may be is not known: it takes several rounds")
    return found


def doubt(ratio: Ratio) -> str:
    """Why the rounds do not support a ratio; empty where they do, or nothing is known."""
    if ratio.interval is None:
        return ""
    low, high = ratio.interval
    if low < 1.0 < high:
        return (
            f"the rounds do not tell which is faster, the ratio is somewhere from {interval(ratio)}"
        )
    if high - low > WIDE * ratio.value:
        return f"the rounds disagree, the ratio is somewhere from {interval(ratio)}"
    return ""


def noise_notes(noise: Noise | None) -> list[str]:
    """What the machine's noise was, in a line."""
    if noise is None:
        return []
    scattered = ", ".join(f"{name} {share:.0%}" for name, share in noise.scatter.items())
    return [
        f"load average {noise.load_start:.1f} before, {noise.load_end:.1f} after; "
        f"{noise.steal:.1%} of the CPU time stolen by the hypervisor"
        + (f"; rounds scatter by {scattered}" if scattered else "")
    ]


def noise_warnings(noise: Noise | None, host: Machine) -> list[str]:
    """Why this machine was not fit to measure on."""
    warnings = []
    if noise is not None and noise.load_start > _BUSY_LOAD * host.cores:
        warnings.append(
            f"the machine was busy before: load average {noise.load_start:.1f} on "
            f"{host.cores} cores"
        )
    if noise is not None and noise.steal > _MUCH_STEAL:
        warnings.append(f"the hypervisor gave {noise.steal:.0%} of the CPU time to others")
    return warnings


def in_brackets(ratio: Ratio) -> str:
    """ " (3.10 to 3.41)", or nothing where one round cannot say."""
    return "" if ratio.interval is None else f" ({interval(ratio)})"


def compare(rounds: Mapping[str, Rounds], pairs: Sequence[tuple[str, str]]) -> dict[str, Ratio]:
    """ "a/b" for each pair of `pairs` that was measured."""
    from tensorwire.measure.statistics import speedup  # and numpy, which no --help waits for

    return {
        f"{first}/{second}": speedup(rounds[first], rounds[second])
        for first, second in pairs
        if first in rounds and second in rounds
    }


def by_side_and_case(
    rounds: Mapping[str, Mapping[str, Rounds]],
) -> dict[str, Rounds]:
    """The rounds of each case and side as those of one: "grpc", or "grpc tiny" of several cases."""
    return {
        name + _case_suffix(case, rounds): of_side
        for case, of_sides in rounds.items()
        for name, of_side in of_sides.items()
    }


def compare_cases(
    rounds: Mapping[str, Mapping[str, Rounds]],
    pairs: Sequence[tuple[str, str]] = PAIRS,
) -> dict[str, Ratio]:
    """`pairs` in each case of `rounds`; the case is in the name where there are several."""
    ratios = {}
    for case, of_sides in rounds.items():
        for name, ratio in compare(of_sides, pairs).items():
            ratios[name + _case_suffix(case, rounds)] = ratio
    return ratios


def _case_suffix(case: str, rounds: Mapping[str, object]) -> str:
    return f" {case}" if len(rounds) > 1 else ""
