"""Trains with tf.estimator.train_and_evaluate, as users of it do: TF_CONFIG names the task.

The gradients are integers that do not depend on the variables. So the variables are determined
exactly by the number of steps, regardless of which worker made which step.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import tensorflow as tf
from reporting import report

tf1 = tf.compat.v1
COLUMNS, WORDS = 200, 50


def input_fn() -> Any:
    columns = tf.reshape(tf.range(4 * COLUMNS, dtype=tf.int32) % 5 - 2, [4, COLUMNS])
    features = {"columns": tf.cast(columns, tf.float32), "words": tf.constant([1, 7, 7, 49])}
    return tf1.data.Dataset.from_tensors((features, tf.zeros([4]))).repeat()


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    weights = tf1.get_variable("weights", [COLUMNS, 1], initializer=tf1.zeros_initializer())
    table = tf1.get_variable("table", [WORDS, 3], initializer=tf1.zeros_initializer())
    looked_up = tf.nn.embedding_lookup(table, features["words"])
    loss = tf.reduce_sum(tf.matmul(features["columns"], weights)) + tf.reduce_sum(looked_up)
    optimizer = tf1.train.GradientDescentOptimizer(1.0)
    return tf.estimator.EstimatorSpec(
        mode,
        loss=loss,
        train_op=optimizer.minimize(loss, global_step=tf1.train.get_global_step()),
        eval_metric_ops={"table_sum": tf1.metrics.mean(tf.reduce_sum(table))},
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--protocol")
    parser.add_argument("--directory", required=True)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--tensor-fuse", action="store_true")
    options = parser.parse_args()
    if options.protocol == "grpc++":
        import tensorwire.tf  # noqa: F401

    said = {"protocol": options.protocol} if options.protocol else {}
    if options.tensor_fuse:
        said["session_config"] = tf1.ConfigProto(tensor_fuse=True)
    config = tf.estimator.RunConfig(
        model_dir=str(Path(options.directory, "model")),
        save_checkpoints_steps=20,
        experimental_max_worker_delay_secs=1,
        **said,
    )
    estimator = tf.estimator.Estimator(model_fn, config=config)
    tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(input_fn, max_steps=options.steps),
        tf.estimator.EvalSpec(input_fn, steps=1, start_delay_secs=0, throttle_secs=1),
    )
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    values = {}
    if task["type"] in ("chief", "evaluator"):
        values = {
            name: estimator.get_variable_value(name).tolist()
            for name in ("weights", "table", "global_step")
        }
    metrics = {}
    if task["type"] == "evaluator":
        evaluated = estimator.evaluate(input_fn, steps=1)
        metrics = {name: float(value) for name, value in evaluated.items()}
    report(options.directory, f"{task['type']}-{task['index']}", values=values, metrics=metrics)


if __name__ == "__main__":
    main()
