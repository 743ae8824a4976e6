"""How figures are written for people."""

from __future__ import annotations


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
