"""Data on Criteo's columns and of purchases: skewed, deterministic; files of Criteo's format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensorwire.bench.experiments.train import Train
from tensorwire.bench.models import MODELS, behaviours, criteo
from tensorwire.errors import TensorwireError, UsageError


def test_synthetic_examples_have_criteos_columns() -> None:
    sample = criteo.generate(5_000)
    ids, dense = sample.inputs[:, :26], sample.inputs[:, 26:].view(np.float32)

    assert dense.shape == (5_000, 13)
    assert (ids >= 0).all() and (ids < criteo.BUCKETS).all()
    assert max(criteo.BUCKETS) == 100_000
    assert [len(np.unique(ids[:, c])) for c in (8, 16, 19)] == [3, 10, 4]  # as in Criteo's set
    most_frequent = np.bincount(ids[:, 2]).argmax()
    assert most_frequent == 0
    # Logarithms of counts.
    np.testing.assert_allclose(np.expm1(dense), np.round(np.expm1(dense)), rtol=1e-4, atol=1e-4)
    assert 0.15 < sample.labels.mean() < 0.4


def test_a_history_ends_at_its_length_and_items_have_one_category_each() -> None:
    sample = behaviours.generate(2_000)
    items, categories = sample.inputs[:, 1:52], sample.inputs[:, 52:103]
    lengths = sample.inputs[:, 103].view(np.float32)

    assert set(lengths) == set(range(1, 51))
    assert sample.inputs[:, 0].max() < behaviours.USERS
    assert items.max() < behaviours.ITEMS and categories.max() < behaviours.CATEGORIES
    is_after = np.arange(51) > lengths[:, None]
    assert not items[is_after].any() and not categories[is_after].any()
    pairs = {(int(i), int(c)) for i, c in zip(items[~is_after], categories[~is_after], strict=True)}
    assert len(pairs) == len({item for item, _ in pairs})


@pytest.mark.parametrize("data", [criteo, behaviours])
def test_synthetic_data_is_the_same_each_time(data: object) -> None:
    first, second = (data.generate(1_000) for _ in range(2))  # type: ignore[attr-defined]

    np.testing.assert_array_equal(first.inputs, second.inputs)
    np.testing.assert_array_equal(first.labels, second.labels)


def line(label: int, first_count: str = "3", first_hash: str = "68fd1e64") -> str:
    return "\t".join([str(label), first_count, *["7"] * 12, first_hash, *["0000000b"] * 25])


def written(folder: Path, lines: list[str]) -> Path:
    (folder / "train.txt").write_text("\n".join(lines) + "\n")
    return folder / "train.txt"


def test_a_file_of_criteos_format_is_hashed_and_its_last_ninth_held_out(tmp_path: Path) -> None:
    lines = [line(1), line(0, "", ""), line(0, "-2")] * 6
    train, held_out = criteo.read(written(tmp_path, [*lines[:-2], line(0), line(1)]))

    assert (len(train.labels), held_out.labels.tolist()) == (16, [0, 1])
    assert train.labels.tolist() == [1, 0, 0] * 5 + [1]
    ids, dense = train.inputs[:, :26], train.inputs[:, 26:].view(np.float32)
    assert ids[:3, 0].tolist() == [
        0x68FD1E64 % criteo.BUCKETS[0],
        0,
        0x68FD1E64 % criteo.BUCKETS[0],
    ]
    assert ids[0, 1:].tolist() == [0xB % buckets for buckets in criteo.BUCKETS[1:]]
    np.testing.assert_allclose(dense[:3, 0], [np.log1p(3), 0, 0], rtol=1e-6)
    np.testing.assert_allclose(dense[:, 1:], np.log1p(7), rtol=1e-6)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([line(1), line(0).replace("\t", ",")], r"train.txt, line 2: 1 fields"),
        ([line(1).split("\t", 1)[1]], "line 1: 39 fields"),  # test.txt, which has no labels
        ([line(7)], "line 1: 40 fields, the first '7'"),
        ([line(1, "many")], "line 1: .*'many'.*: expected are a label, 0 or 1, 13 integers and 26"),
        ([line(1, "1", "xyz")], "line 1: .*'xyz'"),
        ([line(1)] * 20, "too few lines"),
        ([], "line 1: 1 fields"),
    ],
)
def test_another_format_is_refused(tmp_path: Path, lines: list[str], says: str) -> None:
    with pytest.raises(TensorwireError, match=says):
        criteo.read(written(tmp_path, lines))


def test_a_file_that_is_not_there_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TensorwireError, match="No such file"):
        criteo.read(tmp_path / "train.txt")
    (tmp_path / "train.txt").touch()
    with pytest.raises(TensorwireError, match="too few lines"):
        criteo.read(tmp_path / "train.txt")


def test_only_models_on_criteos_columns_take_a_file() -> None:
    taking = [name for name, model in MODELS.items() if model.read]
    assert taking == ["wide_deep", "dlrm", "deepfm"]
    for name in MODELS.keys() - taking:
        with pytest.raises(UsageError, match=f"wide_deep, dlrm or deepfm, not {name}"):
            Train(model=name, data=Path("train.txt"))
