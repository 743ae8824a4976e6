"""Synthetic clicks with a hidden model of their inputs, which show by the AUC if training works.

All data is derived from one seed and is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tensorwire.bench.models.examples import Examples, Labels

ZIPF_EXPONENT = 1.1

# Standard deviations of the parts of the hidden model's logit.
_PAIR_EFFECT = 0.8
_DENSE_EFFECT = 0.8
_PAIRS = 10
_BIAS = -1.5


def generate(
    values: Sequence[int], effects: Sequence[float], examples: int, seed: int, dense: int = 0
) -> Examples:
    """Examples of columns with so many `values`, which follow Zipf's law, as users, sites and
    products do, and of dense columns, the logarithms of log-normal counts.

    Labels are drawn from a hidden model: effects of single values, of dense columns, and of pairs
    of the first columns, which only the deep part can learn.

    Args:
        effects: the standard deviation of each column's part of the hidden model's logit.
        dense: how many dense columns.
    """
    rng = np.random.default_rng(seed)
    ids = np.empty((examples, len(values)), dtype=np.int32)
    logits = np.full(examples, _BIAS)
    for c, (count, effect) in enumerate(zip(values, effects, strict=True)):
        ids[:, c] = zipf(rng, count, examples)
        logits += effect * rng.standard_normal(count)[ids[:, c]]
    for first in range(0, 2 * _PAIRS, 2):
        sides = [rng.standard_normal(values[c])[ids[:, c]] for c in (first, first + 1)]
        logits += _PAIR_EFFECT / _PAIRS**0.5 * sides[0] * sides[1]
    if not dense:
        return Examples(ids, draw_labels(rng, logits))
    logs = np.log1p(np.floor(rng.lognormal(1.0, 1.5, (examples, dense)))).astype(np.float32)
    weights = _DENSE_EFFECT / dense**0.5 * rng.standard_normal(dense)
    logits += (logs - logs.mean(axis=0)) @ weights
    return Examples(np.hstack([ids, logs.view(np.int32)]), draw_labels(rng, logits))


def zipf(rng: np.random.Generator, values: int, count: int) -> npt.NDArray[np.intp]:
    """``count`` draws from [0, ``values``), value v with a share that falls as 1 / (v + 1)^s."""
    shares = np.arange(1, values + 1) ** -ZIPF_EXPONENT
    cumulative: npt.NDArray[np.float64] = np.cumsum(shares)
    draws = rng.random(count) * cumulative[-1]
    return np.asarray(np.searchsorted(cumulative, draws, side="right"), dtype=np.intp)


def draw_labels(rng: np.random.Generator, logits: npt.NDArray[np.float64]) -> Labels:
    """1 with the probability that a logit stands for, else 0."""
    clicked = rng.random(len(logits)) < 1.0 / (1.0 + np.exp(-logits))
    return clicked.astype(np.int32)
