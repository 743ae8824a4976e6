"""Trains with ParameterServerStrategy: TF_CONFIG names the task, the coordinator is "chief".

--mode coordinator: a step function, scheduled by ClusterCoordinator on all workers. Its gradients
are integers that do not depend on the variables, so the sum is exact in any order. --mode keras:
Model.fit. With one worker, the order of the batches is fixed.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import numpy as np
import tensorflow as tf
from reporting import await_reports, keep_reporting, report

BATCH, COLUMNS = 16, 120


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--protocol")
    parser.add_argument("--directory", required=True)
    parser.add_argument("--mode", choices=["coordinator", "keras"], required=True)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    if options.protocol == "grpc++":
        import tensorwire.tf  # noqa: F401

    said = {"rpc_layer": options.protocol} if options.protocol else {}
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver(**said)
    if resolver.task_type in ("ps", "worker"):
        server = tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol=resolver.rpc_layer or "grpc",
        )
        keep_reporting(options.directory, f"{resolver.task_type}-{resolver.task_id}")
        server.join()
    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    train = train_keras if options.mode == "keras" else train_coordinator
    report(options.directory, "chief-0", **train(strategy, options.steps))
    await_reports(options.directory, "chief-0")
    # TensorFlow's destructors would wait for the ps and workers, which never end by themselves.
    os._exit(0)


def train_coordinator(strategy: Any, steps: int) -> dict[str, Any]:
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        dense = tf.Variable(tf.zeros([40, COLUMNS]))
        table = tf.Variable(tf.zeros([100, 4]))
        scalar = tf.Variable(0.0)

    def dataset_fn() -> Any:
        return tf.data.Dataset.range(10**9).map(lambda i: tf.cast(i, tf.int32))

    @tf.function
    def step(iterator: Any, number: Any) -> Any:
        next(iterator)  # each worker reads its input at its own pace
        scale = tf.cast(number % 5 + 1, tf.float32)
        for variable in (dense, table):
            for shard in variable.variables:
                pattern = tf.range(tf.cast(tf.size(shard), tf.float32)) % 11.0
                shard.assign_sub(tf.reshape(pattern, shard.shape) * scale)
        words = (tf.range(10) * 7 + number) % 100
        scalar.assign_add(tf.reduce_sum(scale))
        return tf.shape(tf.nn.embedding_lookup(table, words))

    dataset = coordinator.create_per_worker_dataset(dataset_fn)
    iterator = iter(dataset)
    shapes = [coordinator.schedule(step, args=(iterator, tf.constant(i))) for i in range(steps)]
    coordinator.join()
    assert [s.fetch().tolist() for s in shapes] == [[10, 4]] * steps
    values = {
        "dense": tf.convert_to_tensor(dense).numpy().tolist(),
        "table": tf.convert_to_tensor(table).numpy().tolist(),
        "scalar": float(scalar.numpy()),
    }
    return {"values": values}


def train_keras(strategy: Any, steps: int) -> dict[str, Any]:
    keras = tf.keras
    generator = np.random.default_rng(5)
    inputs = generator.normal(size=[steps * BATCH, COLUMNS]).astype(np.float32)
    targets = inputs[:, :10].sum(1, keepdims=True)

    def dataset_fn(_: Any) -> Any:
        return tf.data.Dataset.from_tensor_slices((inputs, targets)).repeat().batch(BATCH)

    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.InputLayer((COLUMNS,)),
                keras.layers.Dense(
                    8, "relu", kernel_initializer=keras.initializers.GlorotUniform(1)
                ),
                keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(2)),
            ]
        )
        optimizer = keras.optimizers.legacy.SGD(0.01)
        model.compile(optimizer, loss="mse", steps_per_execution=1)
    creator = keras.utils.experimental.DatasetCreator(dataset_fn)
    history = model.fit(creator, epochs=3, steps_per_epoch=steps, verbose=0)
    loss = history.history["loss"]
    weights = [w.tolist() for w in model.get_weights()]
    return {"values": weights, "loss": {"first": loss[0], "last": loss[-1]}}


if __name__ == "__main__":
    main()
