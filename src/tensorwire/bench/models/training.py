"""Click-through models for training with parameter servers: their graph.

Each column has its own embedding table; a wide column also has weights in a linear part, trained
with FTRL, as in Wide & Deep (Cheng et al., 2016). All else of a model is its network
(`networks`), trained with Adagrad. So a step moves up to some hundreds of small tensors between
worker and ps.

Only :func:`build` needs TensorFlow, which its caller passes to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorwire.bench.models import networks
from tensorwire.bench.models.examples import Examples

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
    ids: int = 1
    """How many ids an example has of it; of a wide column 1."""


@dataclass(frozen=True)
class Model:
    """A model: its columns, its data and its network."""

    name: str
    title: str
    """Of its data."""
    columns: Sequence[Column]
    load: Callable[[], tuple[Examples, Examples]]
    """Returns the training examples, in the order to read them, and the held-out examples."""
    kind: str = "Wide & Deep"
    network: networks.Network = networks.small
    dense: int = 0
    """Number of dense columns."""
    read: Callable[[Path], tuple[Examples, Examples]] | None = None
    """As `load`, from a file of the user. None: it has only its own data."""

    @property
    def inputs(self) -> int:
        """The width of ``Examples.inputs``."""
        return sum(column.ids for column in self.columns) + self.dense

    def examples(self, file: Path | None) -> tuple[Examples, Examples]:
        """As `load`, from the user's file if there is one."""
        return self.read(file) if self.read and file else self.load()


@dataclass(frozen=True)
class Graph:
    """The tensors of a model graph that a training loop uses.

    To score examples, feed ``inputs`` and fetch ``logits``.
    """

    inputs: Any
    """int32 [batch, inputs], as ``Examples.inputs``"""
    logits: Any
    """float32 [batch]"""
    loss: Any
    """float32 scalar"""
    global_step: Any
    train: Any
    """The operation that runs one step."""


def records(tf: Any, model: Model, train_file: Path, batch_size: int, first: Any = 0) -> Any:
    """A Dataset of the batches of a file that ``examples.write`` wrote, from `first` on: strings.

    The file's order is random, so a whole batch is read as one record; batching single examples
    would cost more than the model. The file has at least ``batch_size`` examples.
    """
    batch_bytes = 4 * (model.inputs + 1) * batch_size
    left_over_bytes = train_file.stat().st_size % batch_bytes
    return tf.data.FixedLengthRecordDataset(
        str(train_file), batch_bytes, first * batch_bytes, left_over_bytes
    )


def endless(tf: Any, model: Model, train_file: Path, batch_size: int) -> Any:
    """The next batch of a file, whose batches are shuffled in each epoch: a string."""
    batches = records(tf, model, train_file, batch_size)
    shuffled = batches.shuffle(_SHUFFLED_BATCHES).repeat().prefetch(2)
    return tf.compat.v1.data.make_one_shot_iterator(shuffled).get_next()


def build(
    tf: Any, model: Model, record: Any, batch_size: int, tables_on: Sequence[str] = ()
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
    batch = tf.reshape(batch, [batch_size, model.inputs + 1])
    inputs = v1.placeholder_with_default(batch[:, :-1], [None, model.inputs], name="inputs")
    labels = tf.cast(batch[:, -1], tf.float32)
    id_count = model.inputs - model.dense
    dense = tf.bitcast(inputs[:, id_count:], tf.float32) if model.dense else None
    ids = iter(tf.unstack(tf.cast(inputs[:, :id_count], tf.int64), axis=1))
    ids_of = {each.name: list(itertools.islice(ids, each.ids)) for each in model.columns}

    devices: Iterator[str] = itertools.cycle(tables_on)

    def lookup(column: Column, dim: int, initializer: Any) -> tuple[Any, Any]:
        """The rows of this column's ids in a new table, and what an optimizer updates."""
        column_ids = ids_of[column.name]
        of_column = column_ids[0] if column.ids == 1 else tf.stack(column_ids, axis=1)
        if tables_on:
            return _growing_lookup(column.name, dim, initializer, next(devices), of_column)
        table = v1.get_variable(column.name, [column.buckets, dim], initializer=initializer)
        return tf.nn.embedding_lookup(table, of_column), table

    # All tables of one kind are created in a row, so round robin spreads each kind over all ps.
    with v1.variable_scope("deep"):
        deep = [
            lookup(column, column.embedding_dim, networks.small_values(tf, c))
            for c, column in enumerate(model.columns)
        ]
    with v1.variable_scope("wide"):
        wide = [lookup(each, 1, v1.zeros_initializer()) for each in model.columns if each.is_wide]
        bias = v1.get_variable("bias", [1], initializer=v1.zeros_initializer()) if wide else None
    with v1.variable_scope("deep"):
        score = model.network(tf, [rows for rows, _ in deep], dense)
    if wide:
        score = score + tf.add_n([rows for rows, _ in wide]) + bias
    logits = tf.squeeze(score, axis=1, name="logits")
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))

    global_step = v1.train.get_or_create_global_step()
    trained = []
    for scope, looked_up, optimizer in (
        ("wide", wide, v1.train.FtrlOptimizer(WIDE_LEARNING_RATE)),
        ("deep", deep, v1.train.AdagradOptimizer(DEEP_LEARNING_RATE)),
    ):
        # Tables that grow are not among the trainable variables.
        growing = [table for _, table in looked_up if tables_on]
        grows = _dynamic_embedding().DynamicEmbeddingOptimizer if tables_on else lambda each: each
        if variables := v1.trainable_variables(scope) + growing:
            trained.append(grows(optimizer).minimize(loss, var_list=variables))
    with v1.control_dependencies(trained):
        train = v1.assign_add(global_step, 1).op
    return Graph(inputs=inputs, logits=logits, loss=loss, global_step=global_step, train=train)


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
    rows.set_shape([*ids.shape, dim])
    return rows, trainable
