"""Where a record was made, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_UNITS = (("rate_mbit_per_s", "Mbit/s"), ("delay_us", "us of delay"), ("cpus", "CPUs each"))


def lab_notes(lab: Mapping[str, Any] | None) -> list[str]:
    """The hosts of the lab, and what was asked for and is not so; nothing without a lab."""
    if lab is None:
        return []
    words = [f"{lab['hosts']} hosts"]
    for name, unit in _UNITS:
        of_all = lab[name]
        if isinstance(of_all, list):
            words.append(
                "/".join("-" if one is None else f"{one:g}" for one in of_all) + f" {unit}"
            )
        elif of_all:
            words.append(f"{of_all:g} {unit}")
    where = f"measured between the hosts of a lab: {', '.join(words)}"
    return [*([where] if lab["network"] else []), *lab["notes"]]
