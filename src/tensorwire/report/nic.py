"""Lines about network interfaces, as `ifstat` writes them."""

from __future__ import annotations

from collections.abc import Sequence

from tensorwire.metrics.nic import NicRate

_NUMBER = 12
_COLUMN = 2 * _NUMBER + 8


def header(rates: Sequence[NicRate]) -> list[str]:
    """Two lines: each interface with its nominal speed, and what stands below it."""
    names = "".join(f"{_title(rate):^{_COLUMN}}" for rate in rates)
    units = "".join(f"{'KB/s in':>{_NUMBER}}{'KB/s out':>{_NUMBER}}{'of link':>8}" for _ in rates)
    return [names.rstrip(), units]


def line(rates: Sequence[NicRate]) -> str:
    """One interval, a column an interface."""
    return "".join(
        f"{rate.in_kb_per_s:>{_NUMBER},.1f}{rate.out_kb_per_s:>{_NUMBER},.1f}{_share(rate):>8}"
        for rate in rates
    )


def _title(rate: NicRate) -> str:
    if rate.mbit_per_s is None:
        return rate.interface
    return f"{rate.interface} ({rate.mbit_per_s / 1e3:g} Gbit/s)"


def _share(rate: NicRate) -> str:
    return "-" if rate.share is None else f"{rate.share:.1%}"
