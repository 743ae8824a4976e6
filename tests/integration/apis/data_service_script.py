"""Trains on elements of a tf.data service, whose dispatcher and worker are the task "data".

--mode strategy: ParameterServerStrategy; the worker's dataset reads from the service.
--mode session: tf.compat.v1.train.Server; the session's worker reads, the ps adds up.
The service itself always uses gRPC.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import tensorflow as tf
from reporting import await_file, await_reports, keep_reporting, report

tf1 = tf.compat.v1
ELEMENTS, BATCH = 400, 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--protocol")
    parser.add_argument("--directory", required=True)
    parser.add_argument("--mode", choices=["strategy", "session"], required=True)
    options = parser.parse_args()
    if options.protocol == "grpc++":
        import tensorwire.tf  # noqa: F401

    address = Path(options.directory, "service")
    if json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "data":
        serve(address)
    await_file(address)
    train = train_strategy if options.mode == "strategy" else train_session
    train(options, address.read_text())


def serve(address: Path) -> None:
    data = tf.data.experimental.service
    dispatcher = data.DispatchServer(data.DispatcherConfig(port=0))
    worker = data.WorkerServer(
        data.WorkerConfig(dispatcher_address=dispatcher.target.partition("://")[2])
    )
    partial = address.with_suffix(".partial")
    partial.write_text(dispatcher.target)
    partial.rename(address)
    worker.join()


def squares(service: str) -> Any:
    """Batches of the first square numbers, made by the service."""
    return (
        tf.data.Dataset.range(ELEMENTS)
        .map(lambda number: number * number)
        .batch(BATCH)
        .apply(
            tf.data.experimental.service.distribute(
                processing_mode=tf.data.experimental.service.ShardingPolicy.DYNAMIC,
                service=service,
                job_name="shared",
            )
        )
    )


def train_strategy(options: argparse.Namespace, service: str) -> None:
    said = {"rpc_layer": options.protocol} if options.protocol else {}
    config = json.loads(os.environ["TF_CONFIG"])
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver(**said)
    if resolver.task_type in ("ps", "worker"):
        server = tf.distribute.Server(
            config["cluster"], resolver.task_type, resolver.task_id, resolver.rpc_layer or "grpc"
        )
        keep_reporting(options.directory, f"{resolver.task_type}-{resolver.task_id}")
        server.join()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        total = tf.Variable(tf.zeros([BATCH], tf.int64))

    @tf.function
    def step(iterator: Any) -> None:
        total.assign_add(next(iterator))

    iterator = iter(coordinator.create_per_worker_dataset(lambda: squares(service)))
    for _ in range(ELEMENTS // BATCH):
        coordinator.schedule(step, args=(iterator,))
    coordinator.join()
    report(options.directory, "chief-0", values=total.numpy().tolist())
    await_reports(options.directory, "chief-0")
    os._exit(0)  # TensorFlow's destructors would wait for the other tasks


def train_session(options: argparse.Namespace, service: str) -> None:
    tf1.disable_eager_execution()
    config = json.loads(os.environ["TF_CONFIG"])
    job = config["task"]["type"]
    said = {"protocol": options.protocol} if options.protocol else {}
    server = tf1.train.Server(config["cluster"], job, 0, **said)
    if job == "ps":
        keep_reporting(options.directory, "ps-0")
        server.join()
    with tf.device("/job:worker/task:0"):
        iterator = tf1.data.make_initializable_iterator(squares(service))
        batch = iterator.get_next()
    with tf.device("/job:ps/task:0"):
        total = tf1.get_variable("total", [BATCH], tf.int64, tf1.zeros_initializer())
        add = total.assign_add(batch)
    with tf1.Session(server.target) as session:
        session.run([iterator.initializer, total.initializer])
        try:
            while True:
                session.run(add)
        except tf.errors.OutOfRangeError:
            values = session.run(total).tolist()
    report(options.directory, "worker-0", values=values)
    await_reports(options.directory, "worker-0")
    os._exit(0)  # TensorFlow's destructors would wait for the ps


if __name__ == "__main__":
    main()
