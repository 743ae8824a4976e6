"""Parsing and printing of numbers with units."""

from __future__ import annotations

import pytest

from tensorwire.units import parse_quantity, parse_rate, rate_text


@pytest.mark.parametrize(
    ("text", "bits_per_s"),
    [
        ("10gbit", 10e9),
        ("500mbit", 500e6),
        ("2.5 Gbit/s", 2.5e9),
        ("64kbit", 64e3),
        ("800bit", 800.0),
        ("0.1gbit", 100_000_000.0),
    ],
)
def test_a_rate_is_bits_a_second(text: str, bits_per_s: float) -> None:
    assert parse_rate(text) == bits_per_s


@pytest.mark.parametrize("text", ["", "10", "fast", "10gb", "gbit", "-1gbit", "1e3mbit", "٣mbit"])
def test_what_is_no_rate_is_none(text: str) -> None:
    assert parse_rate(text) is None


@pytest.mark.parametrize("bits_per_s", [10e9, 500e6, 2.5e9])
def test_a_rate_is_read_as_it_is_written(bits_per_s: float) -> None:
    assert parse_rate(rate_text(bits_per_s)) == bits_per_s


def test_a_quantity_is_in_one_of_its_units() -> None:
    units = {"us": "1e-6", "s": "1"}
    assert parse_quantity("50us", units) == 50e-6
    assert parse_quantity("2 S", units) == 2.0
    assert parse_quantity("2ms", units) is None
