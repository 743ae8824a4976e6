"""Wide & Deep, DLRM and DeepFM on the columns of Criteo's click logs.

26 categorical columns have as many values as in Criteo's Kaggle set, but at most 100,000; 13 dense
columns are the logarithms of counts. The data is synthetic (`clicks`), or a file of that set.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tensorwire.bench.models import clicks, networks
from tensorwire.bench.models.examples import Examples
from tensorwire.bench.models.training import Column, Model
from tensorwire.errors import TensorwireError

DENSE_COLUMNS = 13
TRAIN_EXAMPLES = 1 << 19
HELD_OUT_EXAMPLES = 1 << 14

_MOST_BUCKETS = 100_000
_VALUES = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
# Four buckets per value keep collisions of small columns rare.
BUCKETS = tuple(min(4 * each, _MOST_BUCKETS) for each in _VALUES)
_SEED = 26_013
_CATEGORICAL_EFFECT = 1.2


def generate(examples: int, seed: int = _SEED) -> Examples:
    """Synthetic examples."""
    values = [min(each, _MOST_BUCKETS) for each in _VALUES]
    effects = [_CATEGORICAL_EFFECT / len(values) ** 0.5] * len(values)
    return clicks.generate(values, effects, examples, seed, DENSE_COLUMNS)


def load() -> tuple[Examples, Examples]:
    """The examples to train on, and those held out."""
    return generate(TRAIN_EXAMPLES + HELD_OUT_EXAMPLES).split(TRAIN_EXAMPLES)


def read(path: Path) -> tuple[Examples, Examples]:
    """As `load`, from the first lines of a file like train.txt of Criteo's Kaggle set. The last of
    them, at most a ninth, are held out. What is missing is 0, and so are negative integers.

    Raises:
        TensorwireError: the file cannot be read, has another form, or too few lines.
    """
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            lines = itertools.islice(file, TRAIN_EXAMPLES + HELD_OUT_EXAMPLES)
            rows = [_parsed(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]
    except OSError as error:
        raise TensorwireError(f"{path}: {error.strerror}") from error
    train = len(rows) - min(HELD_OUT_EXAMPLES, len(rows) // 9)
    if len({row[-1] for row in rows[train:]}) < 2:
        raise TensorwireError(f"{path}: too few lines: its last ninth needs both labels, 0 and 1")
    every = np.stack(rows)
    return Examples(every[:, :-1], every[:, -1]).split(train)


def _parsed(line: str, where: str) -> npt.NDArray[np.int32]:
    """The inputs and the label of an example."""
    label, *fields = line.rstrip("\n").split("\t")
    try:
        if label not in ("0", "1") or len(fields) != DENSE_COLUMNS + len(BUCKETS):
            raise ValueError(f"{1 + len(fields)} fields, the first {label!r}")
        dense = [math.log1p(max(int(each or "0"), 0)) for each in fields[:DENSE_COLUMNS]]
        hashes = zip(fields[DENSE_COLUMNS:], BUCKETS, strict=True)
        ids = [int(each or "0", 16) % buckets for each, buckets in hashes]
    except (ValueError, OverflowError) as error:
        raise TensorwireError(
            f"{where}: {error}: expected are a label, 0 or 1, {DENSE_COLUMNS} integers and "
            f"{len(BUCKETS)} hexadecimal strings, separated by tabs"
        ) from error
    bits = np.array(dense, np.float32).view(np.int32)
    return np.concatenate([ids, bits, [int(label)]], dtype=np.int32)


def _model(
    name: str, kind: str, network: networks.Network, embedding_dim: int, is_wide: bool
) -> Model:
    columns = [Column(f"C{c}", each, embedding_dim, is_wide) for c, each in enumerate(BUCKETS, 1)]
    return Model(name, "Criteo's columns", columns, load, kind, network, DENSE_COLUMNS, read)


MODELS = (
    _model("wide_deep", "Wide & Deep", networks.wide_deep, 32, is_wide=True),
    _model("dlrm", "DLRM", networks.dlrm, 16, is_wide=False),
    _model("deepfm", "DeepFM", networks.deepfm, 10, is_wide=True),
)
