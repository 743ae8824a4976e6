"""Click-through rate: a synthetic job with the tensor sizes of a wide production model.

It has 26 categorical columns, as public click logs of advertisers do, with up to 100,000 values;
and 200 small feature columns, each with its own table of few values and a short embedding.
"""

from __future__ import annotations

import numpy as np

from tensorwire.bench.models import clicks
from tensorwire.bench.models.examples import Examples
from tensorwire.bench.models.training import Column, Model

CATEGORICAL_COLUMNS = 26
SMALL_COLUMNS = 200
TRAIN_EXAMPLES = 1 << 17
HELD_OUT_EXAMPLES = 1 << 14

_SEED = 26_200
_MIN_VALUES, _MAX_VALUES = 100, 100_000
_MIN_SMALL_VALUES, _MAX_SMALL_VALUES = 4, 100
# Standard deviations of the parts of the hidden model's logit.
_CATEGORICAL_EFFECT = 1.2
_SMALL_EFFECT = 0.8


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
    effects = [
        *[_CATEGORICAL_EFFECT / CATEGORICAL_COLUMNS**0.5] * CATEGORICAL_COLUMNS,
        *[_SMALL_EFFECT / SMALL_COLUMNS**0.5] * SMALL_COLUMNS,
    ]
    return clicks.generate([column.buckets for column in COLUMNS], effects, examples, seed)


def load() -> tuple[Examples, Examples]:
    """The examples to train on, and those held out."""
    return generate(TRAIN_EXAMPLES + HELD_OUT_EXAMPLES).split(TRAIN_EXAMPLES)


MODEL = Model("ctr", "synthetic click-through rates", COLUMNS, load)
