"""The synthetic click-through data is wide, skewed, deterministic and learnable."""

from __future__ import annotations

import numpy as np
import pytest

from tensorwire.bench.models import clicks, ctr
from tensorwire.bench.models.examples import Examples, auc

EXAMPLES = 20_000


@pytest.fixture(scope="module")
def sample() -> Examples:
    return ctr.generate(EXAMPLES)


def test_there_are_26_categorical_columns_and_200_small_ones(sample: Examples) -> None:
    categorical, small = ctr.COLUMNS[:26], ctr.COLUMNS[26:]

    assert len(small) == 200
    assert max(column.buckets for column in categorical) == 100_000
    assert max(column.buckets for column in small) <= 100
    assert len({column.name for column in ctr.COLUMNS}) == 226
    assert sample.inputs.shape == (EXAMPLES, 226)
    assert sample.inputs.dtype == np.int32


def test_ids_are_within_their_tables_and_follow_zipfs_law(sample: Examples) -> None:
    for c, column in enumerate(ctr.COLUMNS):
        shares = np.bincount(sample.inputs[:, c], minlength=column.buckets) / EXAMPLES
        expected = np.arange(1, column.buckets + 1) ** -clicks.ZIPF_EXPONENT
        expected /= expected.sum()
        assert len(shares) == column.buckets
        np.testing.assert_allclose(shares[:4], expected[:4], atol=0.02)


def test_the_data_is_the_same_each_time(sample: Examples) -> None:
    again = ctr.generate(EXAMPLES)

    np.testing.assert_array_equal(again.inputs, sample.inputs)
    np.testing.assert_array_equal(again.labels, sample.labels)


def test_clicks_are_the_rarer_label_and_follow_from_the_ids(sample: Examples) -> None:
    half = EXAMPLES // 2
    assert 0.1 < sample.labels.mean() < 0.4

    # Click rates by column value, learned on one half of the data, rank the other half.
    scores = np.zeros(half)
    for c, column in enumerate(ctr.COLUMNS[:26]):
        ids, labels = sample.inputs[:half, c], sample.labels[:half]
        shown = np.bincount(ids, minlength=column.buckets) + 20.0
        clicked = np.bincount(ids, labels, minlength=column.buckets) + 20.0 * labels.mean()
        scores += np.log(clicked / shown)[sample.inputs[half:, c]]

    assert auc(scores, sample.labels[half:]) > 0.6
