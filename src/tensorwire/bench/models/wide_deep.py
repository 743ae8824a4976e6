"""Wide & Deep over hashed columns, for training with parameter servers.

The model follows Cheng et al., *Wide & Deep Learning for Recommender Systems* (2016): a linear part
over hashed columns, trained with FTRL, and a multi-layer perceptron over their embeddings, trained
with Adagrad, give one logit. Each column has its own embedding table and its own wide weights, as
in production click-through models. So a step moves some hundreds of small tensors between worker
and ps.

Only :func:`build` needs TensorFlow, which its caller passes to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorwire.bench.models.examples import Examples

HIDDEN_UNITS = (128, 64)
WIDE_LEARNING_RATE = 0.05
DEEP_LEARNING_RATE = 0.05
_SHUFFLED_BATCHES = 64


@dataclass(frozen=True)
class Column:
    """A hashed feature column; its ids are in [0, ``buckets``)."""

    name: str
    buckets: int
    embedding_dim: int = 8
    is_wide: bool = True
    """True if the column is part of the linear model, too."""


@dataclass(frozen=True)
class Model:
    """A model: its columns and its data."""

    name: str
    title: str
    columns: Sequence[Column]
    load: Callable[[], tuple[Examples, Examples]]
    """Returns the training examples, in the order to read them, and the held-out examples."""


@dataclass(frozen=True)
class Graph:
    """The tensors of a model graph that a training loop uses.

    To score examples, feed ``ids`` and fetch ``logits``.
    """

    ids: Any
    """int64 [batch, columns]"""
    logits: Any
    """float32 [batch]"""
    loss: Any
    """float32 scalar"""
    global_step: Any
    train: Any
    """The operation that runs one step."""


def records(
    tf: Any, columns: Sequence[Column], train_file: Path, batch_size: int, first: Any = 0
) -> Any:
    """A Dataset of the batches of a file that ``examples.write`` wrote, from `first` on: strings.

    The file's order is random, so a whole batch is read as one record; batching single examples
    would cost more than the model. The file has at least ``batch_size`` examples.
    """
    batch_bytes = 4 * (len(columns) + 1) * batch_size
    left_over_bytes = train_file.stat().st_size % batch_bytes
    return tf.data.FixedLengthRecordDataset(
        str(train_file), batch_bytes, first * batch_bytes, left_over_bytes
    )


def endless(tf: Any, columns: Sequence[Column], train_file: Path, batch_size: int) -> Any:
    """The next batch of a file, whose batches are shuffled in each epoch: a string."""
    batches = records(tf, columns, train_file, batch_size)
    shuffled = batches.shuffle(_SHUFFLED_BATCHES).repeat().prefetch(2)
    return tf.compat.v1.data.make_one_shot_iterator(shuffled).get_next()


def build(
    tf: Any,
    columns: Sequence[Column],
    record: Any,
    batch_size: int,
    tables_on: Sequence[str] = (),
) -> Graph:
    """Builds the model into the current graph.

    Variables are created with ``tf.compat.v1.get_variable`` under the caller's device function
    (``replica_device_setter``). Lookups run on the ps that owns the table, and gradients are sent
    there as ``IndexedSlices``. The rest stays on the worker.

    Args:
        record: the batch of a step, an element of `records`.
        tables_on: devices that get the tables in turn, as tables of tensorflow-recommenders-addons,
            which grow with the ids that occur. Without it the tables are variables.
    """
    v1 = tf.compat.v1
    batch = tf.io.decode_raw(record, tf.int32)
    batch = tf.reshape(batch, [batch_size, len(columns) + 1])
    ids = v1.placeholder_with_default(
        tf.cast(batch[:, :-1], tf.int64), [None, len(columns)], name="ids"
    )
    labels = tf.cast(batch[:, -1], tf.float32)
    column_ids = dict(zip((each.name for each in columns), tf.unstack(ids, axis=1), strict=True))

    devices: Iterator[str] = itertools.cycle(tables_on)

    def lookup(column: Column, dim: int, initializer: Any) -> tuple[Any, Any]:
        """The rows of this column's ids in a new table, and what an optimizer updates."""
        column_id = column_ids[column.name]
        if tables_on:
            return _growing_lookup(column.name, dim, initializer, next(devices), column_id)
        table = v1.get_variable(column.name, [column.buckets, dim], initializer=initializer)
        return tf.nn.embedding_lookup(table, column_id), table

    # All tables of one kind are created in a row, so round robin spreads each kind over all ps.
    with v1.variable_scope("deep"):
        deep = [
            lookup(
                column, column.embedding_dim, v1.truncated_normal_initializer(stddev=0.05, seed=c)
            )
            for c, column in enumerate(columns)
        ]
    with v1.variable_scope("wide"):
        wide = [lookup(each, 1, v1.zeros_initializer()) for each in columns if each.is_wide]
        bias = v1.get_variable("bias", [1], initializer=v1.zeros_initializer())

    hidden = tf.concat([rows for rows, _ in deep], axis=1)
    with v1.variable_scope("deep"):
        width = sum(column.embedding_dim for column in columns)
        for layer, units in enumerate((*HIDDEN_UNITS, 1)):
            kernel = v1.get_variable(
                f"layer{layer}/kernel",
                [width, units],
                initializer=v1.glorot_uniform_initializer(seed=layer),
            )
            offset = v1.get_variable(
                f"layer{layer}/bias", [units], initializer=v1.zeros_initializer()
            )
            hidden = tf.matmul(hidden, kernel) + offset
            if units != 1:
                hidden = tf.nn.relu(hidden)
            width = units
    linear = tf.add_n([rows for rows, _ in wide])
    logits = tf.squeeze(hidden + linear + bias, axis=1, name="logits")
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))

    global_step = v1.train.get_or_create_global_step()
    wide_optimizer = v1.train.FtrlOptimizer(WIDE_LEARNING_RATE)
    deep_optimizer = v1.train.AdagradOptimizer(DEEP_LEARNING_RATE)
    if tables_on:
        grows = _dynamic_embedding().DynamicEmbeddingOptimizer
        wide_optimizer, deep_optimizer = grows(wide_optimizer), grows(deep_optimizer)
    # Tables that grow are not among the trainable variables.
    growing_wide, growing_deep = (
        [table for _, table in looked_up if tables_on] for looked_up in (wide, deep)
    )
    wide_train = wide_optimizer.minimize(
        loss, var_list=v1.trainable_variables("wide") + growing_wide
    )
    deep_train = deep_optimizer.minimize(
        loss, var_list=v1.trainable_variables("deep") + growing_deep
    )
    with v1.control_dependencies([wide_train, deep_train]):
        train = v1.assign_add(global_step, 1).op
    return Graph(ids=ids, logits=logits, loss=loss, global_step=global_step, train=train)


def _dynamic_embedding() -> Any:
    from tensorflow_recommenders_addons import dynamic_embedding

    return dynamic_embedding


def _growing_lookup(
    name: str, dim: int, initializer: Any, device: str, ids: Any
) -> tuple[Any, Any]:
    """As `lookup` of `build`. Workers add what they change to a row, as each does not see what the
    others change meanwhile (bp_v2).
    """
    embedding = _dynamic_embedding()
    table = embedding.get_variable(
        name, dim=dim, initializer=initializer, devices=[device], bp_v2=True
    )
    rows, trainable = embedding.embedding_lookup_unique(
        table, ids, name=name, return_trainable=True
    )
    return rows, trainable
