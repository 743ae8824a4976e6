"""Networks over the rows that a batch looks up, each after its paper.

A network gets the rows of each column, float32 [batch, dim] or, of a column with several ids,
[batch, ids, dim], and the dense columns, float32 [batch, columns] or None. It returns logits,
float32 [batch, 1], to which `training.build` adds the linear part, if columns are wide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

HIDDEN_UNITS = (128, 64)
"""Of the small Wide & Deep models, `flights` and `ctr`."""
Network = Callable[[Any, Sequence[Any], Any], Any]


def small_values(tf: Any, seed: int) -> Any:
    """Makes the first values of embeddings."""
    return tf.compat.v1.truncated_normal_initializer(stddev=0.05, seed=seed)


def layers(tf: Any, inputs: Any, units: Sequence[int]) -> Any:
    """A multi-layer perceptron, [batch, units[-1]], with ReLU between its layers."""
    v1 = tf.compat.v1
    for layer, width in enumerate(units):
        kernel = v1.get_variable(
            f"layer{layer}/kernel",
            [inputs.shape[1], width],
            initializer=v1.glorot_uniform_initializer(seed=layer),
        )
        bias = v1.get_variable(f"layer{layer}/bias", [width], initializer=v1.zeros_initializer())
        if layer > 0:
            inputs = tf.nn.relu(inputs)
        inputs = tf.matmul(inputs, kernel) + bias
    return inputs


def small(tf: Any, rows: Sequence[Any], dense: Any) -> Any:
    """The deep part of the small Wide & Deep models."""
    return layers(tf, tf.concat(rows, axis=1), (*HIDDEN_UNITS, 1))


def wide_deep(tf: Any, rows: Sequence[Any], dense: Any) -> Any:
    """The deep part of Cheng et al., *Wide & Deep Learning for Recommender Systems* (2016):
    embeddings of 32 and dense columns go through layers of 1024, 512 and 256. As in the paper FTRL
    trains the linear part, and Adagrad this one, both at 0.05.
    """
    return layers(tf, tf.concat([*rows, dense], axis=1), (1024, 512, 256, 1))


def dlrm(tf: Any, rows: Sequence[Any], dense: Any) -> Any:
    """Naumov et al., *Deep Learning Recommendation Model for Personalization and Recommendation
    Systems* (2019): layers of 512, 256, 64 and 16 make one more vector of the dense columns, beside
    embeddings of 16. It and the dot products of all pairs go through layers of 512 and 256.
    Adagrad at 0.05.
    """
    with tf.compat.v1.variable_scope("bottom"):
        bottom = tf.nn.relu(layers(tf, dense, (512, 256, 64, 16)))
    vectors = tf.stack([bottom, *rows], axis=1)
    count = vectors.shape[1]
    products = tf.reshape(tf.matmul(vectors, vectors, transpose_b=True), [-1, count * count])
    below_diagonal = np.ravel_multi_index(np.tril_indices(count, -1), (count, count))
    pairs = tf.gather(products, below_diagonal, axis=1)
    with tf.compat.v1.variable_scope("top"):
        return layers(tf, tf.concat([bottom, pairs], axis=1), (512, 256, 1))


def deepfm(tf: Any, rows: Sequence[Any], dense: Any) -> Any:
    """Guo et al., *DeepFM: A Factorization-Machine based Neural Network for CTR Prediction* (2017):
    embeddings of 10 go to a factorization machine and through layers of 400, 400 and 400; the value
    of a dense column scales its embedding. The linear part is the first order, with `first_order`
    for dense columns. FTRL trains it and Adagrad the rest, at 0.05, without the paper's dropout.
    """
    v1 = tf.compat.v1
    dim = rows[0].shape[1]
    of_dense = v1.get_variable("dense", [dense.shape[1], dim], initializer=small_values(tf, 0))
    fields = tf.concat([tf.stack(rows, axis=1), dense[:, :, None] * of_dense], axis=1)
    square_of_sum = tf.square(tf.reduce_sum(fields, axis=1))
    sum_of_squares = tf.reduce_sum(tf.square(fields), axis=1)
    second = 0.5 * tf.reduce_sum(square_of_sum - sum_of_squares, axis=1, keepdims=True)
    with v1.variable_scope("first_order"):
        first = layers(tf, dense, (1,))
    flat = tf.reshape(fields, [-1, fields.shape[1] * dim])
    return first + second + layers(tf, flat, (400, 400, 400, 1))


def din(tf: Any, rows: Sequence[Any], dense: Any) -> Any:
    """Zhou et al., *Deep Interest Network for Click-Through Rate Prediction* (2018): a layer of 36
    compares each behaviour with the target and gives its weight in the user's interest; layers of
    200 and 80 follow. Adagrad at 0.05, and ReLU instead of the paper's Dice.

    Columns are the user, with an embedding of 64, and items and their categories, with 32 each:
    the target and then the behaviours. The dense column is the number of behaviours.
    """
    user, items, categories = rows
    both = tf.concat([items, categories], axis=2)
    target, history = both[:, :1], both[:, 1:]
    length, dim = history.shape[1:]
    targets = tf.tile(target, [1, length, 1])
    compared = tf.concat([history, targets, history - targets, history * targets], axis=2)
    with tf.compat.v1.variable_scope("attention"):
        weights = layers(tf, tf.reshape(compared, [-1, 4 * dim]), (36, 1))
    is_behaviour = tf.sequence_mask(tf.cast(dense[:, 0], tf.int32), length, tf.float32)
    weights = tf.reshape(weights, [-1, length]) * is_behaviour
    interest = tf.reduce_sum(weights[:, :, None] * history, axis=1)
    return layers(tf, tf.concat([user, target[:, 0], interest], axis=1), (200, 80, 1))
