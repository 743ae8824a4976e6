"""Numbers with units, as people read and write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

_BITS = {"bit": "1", "kbit": "1e3", "mbit": "1e6", "gbit": "1e9"}
RATE_EXAMPLE = "10gbit or 500mbit"


def number(value: float) -> str:
    """Three significant digits without an exponent: 1230, 12.3, 0.0123."""
    if value == 0:
        return "0"
    digits = f"{value:.3g}"
    return f"{float(digits):.0f}" if "e" in digits else digits


def data_size(size_bytes: float) -> str:
    """64 B, 4.1 kB, 100 MB, 1 GB: by powers of ten."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= scale:
            return f"{number(size_bytes / scale)} {unit}"
    return f"{number(size_bytes)} B"


def megabytes(size_bytes: float) -> str:
    """MB of 10^6 bytes, also of much larger and smaller sizes."""
    return f"{number(size_bytes / 1e6)} MB"


def percent(share: float) -> str:
    """12 % for 0.12."""
    return f"{share * 100:.0f} %"


def parse_quantity(text: str, units: Mapping[str, str]) -> float | None:
    """Parses a number with a unit, as in "50us"; None if `text` has another form.

    Args:
        units: the factor of each unit, as a decimal number; the result is the number times it.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([a-z]*)", text.strip().lower(), re.ASCII)
    if match is None or match[2] not in units:
        return None
    return float(Decimal(match[1]) * Decimal(units[match[2]]))


def parse_rate(text: str) -> float | None:
    """Bits per second of "10gbit" or "500 Mbit/s"; None if `text` has another form."""
    return parse_quantity(text.strip().lower().removesuffix("/s"), _BITS)


def rate_text(bits_per_s: float) -> str:
    """Text that `parse_rate` parses."""
    scale, unit = (1e9, "gbit") if bits_per_s >= 1e9 else (1e6, "mbit")
    return f"{bits_per_s / scale:g}{unit}"
