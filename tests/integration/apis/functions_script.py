"""Functions that a ClusterCoordinator schedules and that do not simply succeed.

--mode errors: functions that fail on the worker and on the ps; reports how, and that the next ones
work. --mode endure: schedules functions until the file "enough" is in the directory, while other
tasks may go and come back; reports whether every result was right, or what error ended it.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import tensorflow as tf
from reporting import keep_reporting, report

DEADLINE_S = 120.0
BATCH = 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--protocol", required=True)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--mode", choices=["errors", "endure"], required=True)
    options = parser.parse_args()
    if options.protocol == "grpc++":
        import tensorwire.tf  # noqa: F401

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver(rpc_layer=options.protocol)
    if resolver.task_type in ("ps", "worker"):
        server = tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol=options.protocol,
        )
        keep_reporting(options.directory, f"{resolver.task_type}-{resolver.task_id}")
        server.join()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        table = tf.Variable(tf.range(100_000.0))
    if options.mode == "errors":
        values = fail(coordinator, table)
    else:
        try:
            values = survive(coordinator, table, Path(options.directory))
        except tf.errors.UnavailableError as error:
            values = {"error": type(error).__name__}
    report(options.directory, "chief-0", values=values)
    time.sleep(1)  # the other tasks report what they have counted
    os._exit(0)  # TensorFlow's destructors would wait for the other tasks


def fail(coordinator: Any, table: Any) -> dict[str, Any]:
    @tf.function
    def on_worker(number: Any) -> Any:
        tf.debugging.assert_less(number, 0, message="this is meant to fail")
        return number

    @tf.function
    def on_ps(number: Any) -> Any:
        return tf.gather(table, [100_000 + number])  # beyond its end

    @tf.function
    def nothing_returned(number: Any) -> None:
        table.scatter_nd_add([[100_000 + number]], [1.0])

    @tf.function
    def right(number: Any) -> Any:
        return tf.reduce_sum(table) + number

    failures = {}
    for function in (on_worker, on_ps, nothing_returned):
        kept = coordinator.schedule(function, args=(tf.constant(7),))
        try:
            coordinator.join()
            failures[function.__name__] = "none"
        except tf.errors.OpError as error:
            failures[function.__name__] = type(error).__name__
        result = coordinator.schedule(right, args=(tf.constant(1.0),))
        failures[f"after {function.__name__}"] = float(result.fetch())
        del kept
    return failures


def survive(coordinator: Any, table: Any, directory: Path) -> dict[str, Any]:
    @tf.function
    def total(number: Any) -> Any:
        return tf.reduce_sum(table[:1000]) + number

    deadline = time.monotonic() + DEADLINE_S
    done, wrong = 0, 0
    while not (directory / "enough").exists():
        if time.monotonic() > deadline:
            raise TimeoutError("nobody said that it was enough")
        numbers = [float(done + index) for index in range(BATCH)]
        results = [coordinator.schedule(total, args=(tf.constant(n),)) for n in numbers]
        coordinator.join()
        sums = [result.fetch() for result in results]
        wrong += sum(float(s) != 499_500.0 + n for s, n in zip(sums, numbers, strict=True))
        done += BATCH
        (directory / "begun").touch()
    return {"done": done, "wrong": wrong}


if __name__ == "__main__":
    main()
