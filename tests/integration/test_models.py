"""The published models of `bench train`: what their graphs hold, and that they learn.

They are small here, and train without a cluster.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tensorwire.bench.models import MODELS, behaviours, criteo, training
from tensorwire.bench.models.examples import Examples, auc, write
from tensorwire.bench.models.training import Model

pytestmark = pytest.mark.newest

tf1 = tf.compat.v1
BATCH, STEPS, BUCKETS = 128, 100, 300
EXAMPLES, HELD_OUT = 12_000, 3_000

# Of each model: variables that are trained beside those of layers; kernels and biases of layers.
PARTS = {"wide_deep": (26 + 26 + 1, 8), "dlrm": (26, 14), "deepfm": (26 + 26 + 1 + 1, 10)}
PARTS["din"] = (3, 10)


def small(name: str) -> tuple[Model, Examples]:
    """A model with few ids of each column, and its data."""
    model = MODELS[name]
    every = (behaviours if name == "din" else criteo).generate(EXAMPLES)
    columns = [dataclasses.replace(c, buckets=min(c.buckets, BUCKETS)) for c in model.columns]
    buckets = [column.buckets for column in columns for _ in range(column.ids)]
    every.inputs[:, : len(buckets)] %= buckets
    return dataclasses.replace(model, columns=columns), every


def built(model: Model, examples: Examples, folder: Path) -> training.Graph:
    files = write(folder, 1, *examples.split(EXAMPLES - HELD_OUT))
    tf1.set_random_seed(1)
    return training.build(tf, model, training.endless(tf, model, files.train[0], BATCH), BATCH)


def check_graph(name: str, model: Model, graph: Any) -> None:
    variables = {each.op.name: each for each in tf1.trainable_variables()}
    wide = [column for column in model.columns if column.is_wide]
    for column in model.columns:
        shape = [column.buckets, column.embedding_dim]
        assert variables[f"deep/{column.name}"].shape == shape
        assert (f"wide/{column.name}" in variables) == column.is_wide
    of_layers = [each for each in variables if "layer" in each]
    assert (len(variables) - len(of_layers), len(of_layers)) == PARTS[name]

    operations: dict[str, list[Any]] = {}
    for each in graph.get_operations():
        operations.setdefault(each.type.removeprefix("Resource"), []).append(each)
    tables = {f"deep/{c.name}" for c in model.columns} | {f"wide/{c.name}" for c in wide}
    # Where its table is, each lookup runs.
    looked_up = [each for each in operations["Gather"] if "embedding_lookup" in each.name]
    places = {place.decode() for each in looked_up for place in each.colocation_groups()}
    assert {f"loc:@{table}" for table in tables} <= places
    assert len(looked_up) == len(tables)
    # Gradients of tables are sparse.
    assert len(operations["SparseApplyAdagrad"]) == len(model.columns)
    assert len(operations.get("SparseApplyFtrl", ())) == len(wide)


@pytest.mark.parametrize("name", PARTS)
def test_tables_are_looked_up_and_training_ranks_examples_that_were_held_out(
    name: str, tmp_path: Path
) -> None:
    model, examples = small(name)
    _, held_out = examples.split(EXAMPLES - HELD_OUT)
    with tf.Graph().as_default() as all_of_it, tf1.Session() as session:
        graph = built(model, examples, tmp_path)
        check_graph(name, model, all_of_it)
        session.run(tf1.global_variables_initializer())
        losses = [session.run([graph.loss, graph.train])[0] for _ in range(STEPS)]
        scores = session.run(graph.logits, {graph.inputs: held_out.inputs})
        assert session.run(graph.global_step) == STEPS

    assert np.mean(losses[-20:]) < np.mean(losses[:20])
    assert auc(scores, held_out.labels) > 0.56


def test_what_follows_a_history_does_not_change_its_score(tmp_path: Path) -> None:
    model, examples = small("din")
    changed = examples.inputs[:200].copy()
    lengths = changed[:, -1:].view(np.float32)
    behaviour = np.arange(behaviours.LENGTH)
    for first in (2, 3 + behaviours.LENGTH):  # of the items, of the categories
        changed[:, first : first + behaviours.LENGTH] += behaviour >= lengths
    with tf.Graph().as_default(), tf1.Session() as session:
        graph = built(model, examples, tmp_path)
        session.run(tf1.global_variables_initializer())
        scores = session.run(graph.logits, {graph.inputs: examples.inputs[:200]})
        again = session.run(graph.logits, {graph.inputs: changed})

    assert not np.array_equal(changed, examples.inputs[:200])
    np.testing.assert_array_equal(again, scores)
