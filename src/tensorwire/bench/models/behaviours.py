"""DIN on synthetic purchases: will a user, after up to 50 purchases, buy the target item, too?

There are as many users, items and categories as in the electronics set of Amazon's reviews that
DIN's paper uses. A user mostly buys from two categories of the user's own. Labels are drawn from a
hidden model: an effect of the target item, and one of the target's category together with each
category of the history. All data is derived from one seed and is the same on every machine.
"""

from __future__ import annotations

import numpy as np

from tensorwire.bench.models import networks
from tensorwire.bench.models.clicks import draw_labels, zipf
from tensorwire.bench.models.examples import Examples
from tensorwire.bench.models.training import Column, Model

USERS, ITEMS, CATEGORIES = 192_403, 63_001, 801
LENGTH = 50
TRAIN_EXAMPLES = 1 << 17
HELD_OUT_EXAMPLES = 1 << 14

_OWN_SHARE = 0.7
_TASTES = 4
# Standard deviations of the parts of the hidden model's logit.
_ITEM_EFFECT = 0.8
_INTEREST_EFFECT = 2.0


def generate(examples: int, seed: int = 2018) -> Examples:
    """Examples with the ids of the user, of 51 items and of their categories (the target's first,
    then the history's, with zeros at its end), and the length of the history.
    """
    rng = np.random.default_rng(seed)
    shape = (examples, 1 + LENGTH)
    users = zipf(rng, USERS, examples)
    own = zipf(rng, CATEGORIES, 2 * USERS).reshape(USERS, 2)
    own = own[users[:, None], rng.integers(2, size=shape)]
    others = zipf(rng, CATEGORIES, own.size).reshape(shape)
    categories = np.where(rng.random(shape) < _OWN_SHARE, own, others)

    # Each category has a range of items, of which the first ones are bought most.
    of_items = np.append(np.arange(CATEGORIES), zipf(rng, CATEGORIES, ITEMS - CATEGORIES))
    sizes = np.bincount(of_items)
    items = (np.cumsum(sizes) - sizes)[categories]
    items += (rng.random(shape) ** 3 * sizes[categories]).astype(np.intp)

    lengths = rng.integers(1, LENGTH + 1, size=(examples, 1))
    is_there = np.arange(1 + LENGTH) <= lengths
    target, history = categories[:, 0], categories[:, 1:]
    interest = np.zeros(examples)
    for taste in rng.standard_normal((_TASTES, CATEGORIES)):
        of_history = (taste[history] * is_there[:, 1:]).sum(axis=1)
        interest += taste[target] * of_history / lengths[:, 0]
    logits = _INTEREST_EFFECT * (interest - interest.mean()) / interest.std()
    logits += _ITEM_EFFECT * rng.standard_normal(ITEMS)[items[:, 0]]
    dense = lengths.astype(np.float32).view(np.int32)
    inputs = [users[:, None], items * is_there, categories * is_there, dense]
    return Examples(np.hstack(inputs).astype(np.int32), draw_labels(rng, logits))


MODEL = Model(
    "din",
    "synthetic purchases",
    [
        Column("user", USERS, 64, is_wide=False),
        Column("item", ITEMS, 32, is_wide=False, ids=1 + LENGTH),
        Column("category", CATEGORIES, 32, is_wide=False, ids=1 + LENGTH),
    ],
    lambda: generate(TRAIN_EXAMPLES + HELD_OUT_EXAMPLES).split(TRAIN_EXAMPLES),
    "DIN",
    networks.din,
    dense=1,
)
