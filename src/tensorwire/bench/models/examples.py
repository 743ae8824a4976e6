"""Labelled examples of hashed columns: their files, and the AUC of a model on them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Inputs = npt.NDArray[np.int32]
Labels = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Examples:
    """``inputs`` is int32 [examples, inputs]: the ids, then the bits of the float32 values of dense
    columns; ``labels`` is int32 [examples], 0 or 1.
    """

    inputs: Inputs
    labels: Labels

    def split(self, first: int) -> tuple[Examples, Examples]:
        """The first examples, and all others."""
        return (
            Examples(self.inputs[:first], self.labels[:first]),
            Examples(self.inputs[first:], self.labels[first:]),
        )


@dataclass(frozen=True)
class ExampleFiles:
    """Prepared data on disk.

    ``train`` has one file per worker, with records of int32 [inputs + 1]: the inputs and then
    the label. ``held_out`` has records of the same form.
    """

    train: tuple[Path, ...]
    held_out: Path
    train_examples: int


def write(directory: Path, workers: int, train: Examples, held_out: Examples) -> ExampleFiles:
    """Writes the data for ``workers`` workers into ``directory``; each gets its own share."""

    def write_one(path: Path, examples: Examples) -> Path:
        np.hstack([examples.inputs, examples.labels[:, None]]).tofile(path)
        return path

    return ExampleFiles(
        train=tuple(
            write_one(
                directory / f"train-{w}-of-{workers}.bin",
                Examples(train.inputs[w::workers], train.labels[w::workers]),
            )
            for w in range(workers)
        ),
        held_out=write_one(directory / "held_out.bin", held_out),
        train_examples=len(train.labels),
    )


def read(path: Path, inputs: int) -> Examples:
    """Examples with so many inputs from a file that :func:`write` wrote."""
    records = np.fromfile(path, dtype=np.int32).reshape(-1, inputs + 1)
    return Examples(records[:, :-1], records[:, -1])


def auc(scores: npt.NDArray[Any], labels: npt.NDArray[Any]) -> float:
    """Area under the ROC curve: the share of (1, 0) label pairs that are ranked right; ties count
    half.
    """
    positives = int(labels.sum())
    negatives = len(labels) - positives
    if positives == 0 or negatives == 0:
        raise ValueError("the AUC needs examples of both classes")
    _, index, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last_rank = np.cumsum(counts)
    mean_rank = last_rank - (counts - 1) / 2.0
    rank_sum = float(mean_rank[index][labels == 1].sum())
    return (rank_sum - positives * (positives + 1) / 2.0) / (positives * negatives)
