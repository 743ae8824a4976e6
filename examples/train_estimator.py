"""A linear model with tf.estimator on grpc++. TensorFlow 2.15 is the last one with tf.estimator.

Run one process per task; TF_CONFIG names the task. A job has a "chief", any number of "ps" and
"worker", and may have an "evaluator", which is not part of the cluster:

    TF_CONFIG='{"cluster": {"chief": ["127.0.0.1:4001"], "ps": ["127.0.0.1:4002"]},
                "task": {"type": "chief", "index": 0}}' python examples/train_estimator.py
"""

import tempfile
from pathlib import Path

import tensorflow as tf

import tensorwire.tf  # registers protocol "grpc++"

tf1 = tf.compat.v1


def input_fn():
    x = tf.random.normal([64, 100])
    return tf1.data.Dataset.from_tensors(({"x": x}, tf.reduce_sum(x, 1, keepdims=True))).repeat()


def model_fn(features, labels, mode):
    weights = tf1.get_variable("weights", [100, 1], initializer=tf1.zeros_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(features["x"], weights) - labels))
    optimizer = tf1.train.GradientDescentOptimizer(0.05)
    train = optimizer.minimize(loss, global_step=tf1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)


model_dir = Path(tempfile.gettempdir(), "tensorwire-estimator-example")
config = tf.estimator.RunConfig(str(model_dir), protocol="grpc++")
estimator = tf.estimator.Estimator(model_fn, config=config)
tf.estimator.train_and_evaluate(
    estimator,
    tf.estimator.TrainSpec(input_fn, max_steps=300),
    tf.estimator.EvalSpec(input_fn, steps=1),
)
print(f"model in {model_dir}; sent {tensorwire.tf.stats()['tx_bytes']} bytes on grpc++")
