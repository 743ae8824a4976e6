"""A task of a job that is slow in one selected place, and reports the breakdown of its steps.

Started with a channel (tensorwire.bench.lab). Its one argument is JSON: {"spec", "job", "logs"}. A
message {"api": API, "slow": PLACE or null} makes it run some steps and answer with the breakdown of
the last one. The API is "session" for a worker; "function" or "keras" for a chief, which is TF2's.
A slow place takes SLOW_S longer.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import tensorflow as tf

import tensorwire.tf
from tensorwire.bench.lab.channel import TaskEnd

tf1 = tf.compat.v1
SLOW_S = 0.3
STEPS = 2
PS = "/job:ps/task:0"
WORKER = "/job:worker/task:0"
sleeps = {"input": 0.0, "compute": 0.0, "ps": 0.0, "update": 0.0}


def sleeper(place: str) -> Callable[..., Any]:
    def sleep(value: Any) -> Any:
        time.sleep(sleeps[place])
        return value

    return sleep


def pause(place: str, value: Any) -> Any:
    (result,) = tf1.py_func(sleeper(place), [value], [tf.float32])
    result.set_shape(value.shape)
    return result


def inputs() -> tf.data.Dataset:
    """Scalars, each made on request."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    dataset = tf.data.Dataset.from_tensors(1.0).repeat()
    return dataset.map(lambda value: pause("input", value)).with_options(options)


class Sessions:
    """Steps with a tensor from the ps, input and compute on the worker, and an update on the ps.

    Both tasks build the graph, because the ps finds the Python functions of its part by number.
    """

    def __init__(self) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf1.train.get_or_create_global_step()
            with tf.device(WORKER):
                self.iterator = tf1.data.make_initializable_iterator(inputs())
                given = self.iterator.get_next()
            with tf.device(PS):
                # The sleeping time of the ps is fed, because the function runs in another process.
                self.ps_s = tf1.placeholder_with_default(0.0, [], name="ps_s")
                self.update_s = tf1.placeholder_with_default(0.0, [], name="update_s")
                parameter = rest_for(self.ps_s)
            with tf.device(WORKER):
                made = pause("compute", parameter + given)
            with tf.device(PS):
                self.train = tf.group(tf.identity(rest_for(self.update_s + 0.0 * made)).op)
            self.scaffold = tf1.train.Scaffold(
                local_init_op=tf.group(tf1.local_variables_initializer(), self.iterator.initializer)
            )

    def run(self, target: str, slow: str | None, logs: str) -> dict[str, Any]:
        feed = {self.ps_s: SLOW_S * (slow == "ps"), self.update_s: SLOW_S * (slow == "update")}
        hook = tensorwire.tf.StepBreakdownHook(every_steps=STEPS, output_dir=logs)
        figures = tensorwire.tf.FiguresHook(logs, every_steps=STEPS)
        with self.graph.as_default():
            creator = tf1.train.ChiefSessionCreator(self.scaffold, master=target)
            with tf1.train.MonitoredSession(creator, hooks=[hook, figures]) as session:
                for _ in range(STEPS):
                    session.run(self.train, feed)
        assert hook.last is not None
        return asdict(hook.last)


def rest_for(seconds: Any) -> Any:
    def sleep(how_long: Any) -> Any:
        time.sleep(float(how_long))
        return how_long

    (result,) = tf1.py_func(sleep, [seconds], [tf.float32])
    result.set_shape([])
    return result


class Functions:
    """The same with functions of TF2, without the update; Keras without a ps."""

    def __init__(self, spec: dict[str, list[str]]) -> None:
        tf.config.experimental_connect_to_cluster(
            tf.train.ClusterSpec(spec), job_name="chief", task_index=0, protocol="grpc++"
        )
        self._inputs = iter(inputs())

        @tf.function
        def step(given: Any, ps_s: Any) -> Any:
            with tf.device("/job:ps/replica:0/task:0/device:CPU:0"):
                # The ps runs no Python code of this script.
                until = tf.timestamp() + ps_s
                (parameter,) = tf.while_loop(
                    lambda now: now < until, lambda now: [tf.timestamp()], [tf.timestamp()]
                )
            with tf.device("/job:chief/replica:0/task:0/device:CPU:0"):
                return pause("compute", given) + tf.cast(parameter, tf.float32)

        self._step = step

    def run(self, slow: str | None) -> dict[str, Any]:
        timer = tensorwire.tf.StepTimer(every_steps=STEPS)
        for _ in range(STEPS):
            with timer.step():
                with timer.input():
                    given = next(self._inputs)
                self._step(given, tf.constant(SLOW_S * (slow == "ps"), tf.float64))
        assert timer.last is not None
        return asdict(timer.last)

    def fit(self, logs: str) -> dict[str, Any]:
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile(loss="mse")
        pairs = inputs().map(lambda value: (tf.reshape(value, [1, 1]), tf.reshape(value, [1, 1])))
        callback = tensorwire.tf.StepBreakdownCallback(every_steps=STEPS, log_dir=logs)
        figures = tensorwire.tf.FiguresCallback(logs, every_steps=STEPS)
        model.fit(pairs, steps_per_epoch=STEPS, verbose=0, callbacks=[callback, figures])
        assert callback.last is not None
        return asdict(callback.last)


def main() -> None:
    end = TaskEnd()
    arguments = json.loads(sys.argv[1])
    if arguments["job"] == "chief":
        functions = Functions(arguments["spec"])
    else:
        sessions = Sessions()
        server = tf1.train.Server(
            arguments["spec"], job_name=arguments["job"], task_index=0, protocol="grpc++"
        )
    end.send({"ready": True})
    while (question := end.receive()) is not None:
        slow = question["slow"]
        for place in sleeps:
            sleeps[place] = SLOW_S * (place == slow)
        if question["api"] == "session":
            end.send(sessions.run(server.target, slow, arguments["logs"]))
        elif question["api"] == "function":
            end.send(functions.run(slow))
        else:
            end.send(functions.fit(arguments["logs"]))
    os._exit(0)  # TensorFlow's destructors would wait for the other tasks


if __name__ == "__main__":
    main()
