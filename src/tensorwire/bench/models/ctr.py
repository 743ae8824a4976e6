"""Click-through rate: a synthetic job with the tensor sizes of a wide production model.

It has 26 categorical columns, as public click logs of advertisers do, with up to 100,000 values;
and 200 small feature columns, each with its own table of few values and a short embedding. Values
follow Zipf's law, as users, sites and products do. Labels are drawn from a hidden model of the same
inputs (effects of single values, and of pairs of columns, which only the deep part can learn), so
the AUC shows whether training works. All data is derived from one seed and is the same on every
machine.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tensorwire.bench.models.examples import Examples
from tensorwire.bench.models.wide_deep import Column, Model

CATEGORICAL_COLUMNS = 26
SMALL_COLUMNS = 200
TRAIN_EXAMPLES = 1 << 17
HELD_OUT_EXAMPLES = 1 << 14
ZIPF_EXPONENT = 1.1

_SEED = 26_200
_MIN_VALUES, _MAX_VALUES = 100, 100_000
_MIN_SMALL_VALUES, _MAX_SMALL_VALUES = 4, 100
# Standard deviations of the parts of the hidden model's logit.
_CATEGORICAL_EFFECT = 1.2
_SMALL_EFFECT = 0.8
_PAIR_EFFECT = 0.8
_PAIRS = 10
_BIAS = -1.5


def _values(lowest: int, highest: int, columns: int) -> list[int]:
    return [round(float(count)) for count in np.geomspace(lowest, highest, columns)]


COLUMNS: tuple[Column, ...] = (
    *(
        Column(f"category{c}", values)
        for c, values in enumerate(_values(_MIN_VALUES, _MAX_VALUES, CATEGORICAL_COLUMNS))
    ),
    *(
        Column(f"feature{c}", values, embedding_dim=4, is_wide=False)
        for c, values in enumerate(_values(_MIN_SMALL_VALUES, _MAX_SMALL_VALUES, SMALL_COLUMNS))
    ),
)


def generate(examples: int, seed: int = _SEED) -> Examples:
    """``examples`` examples of the job."""
    rng = np.random.default_rng(seed)
    ids = np.empty((examples, len(COLUMNS)), dtype=np.int32)
    logits = np.full(examples, _BIAS)
    categorical_scale = _CATEGORICAL_EFFECT / CATEGORICAL_COLUMNS**0.5
    small_scale = _SMALL_EFFECT / SMALL_COLUMNS**0.5
    for c, column in enumerate(COLUMNS):
        ids[:, c] = _zipf(rng, column.buckets, examples)
        scale = categorical_scale if c < CATEGORICAL_COLUMNS else small_scale
        logits += scale * rng.standard_normal(column.buckets)[ids[:, c]]
    for first in range(0, 2 * _PAIRS, 2):
        sides = [rng.standard_normal(COLUMNS[c].buckets)[ids[:, c]] for c in (first, first + 1)]
        logits += _PAIR_EFFECT / _PAIRS**0.5 * sides[0] * sides[1]
    labels = rng.random(examples) < 1.0 / (1.0 + np.exp(-logits))
    return Examples(ids, labels.astype(np.int32))


def _zipf(rng: np.random.Generator, values: int, count: int) -> npt.NDArray[np.intp]:
    """``count`` draws from [0, ``values``), value v with a share that falls as 1 / (v + 1)^s."""
    shares = np.arange(1, values + 1) ** -ZIPF_EXPONENT
    cumulative: npt.NDArray[np.float64] = np.cumsum(shares)
    draws = rng.random(count) * cumulative[-1]
    return np.asarray(np.searchsorted(cumulative, draws, side="right"), dtype=np.intp)


def load() -> tuple[Examples, Examples]:
    """The examples to train on, and those held out."""
    every = generate(TRAIN_EXAMPLES + HELD_OUT_EXAMPLES)
    return (
        Examples(every.ids[:TRAIN_EXAMPLES], every.labels[:TRAIN_EXAMPLES]),
        Examples(every.ids[TRAIN_EXAMPLES:], every.labels[TRAIN_EXAMPLES:]),
    )


MODEL = Model("ctr", "synthetic click-through rates", COLUMNS, load)
