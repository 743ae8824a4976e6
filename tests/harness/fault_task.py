"""One task of a job of `faults`: `python fault_task.py`.

The first message says which task it is and what it does, and is answered when the server runs. A
worker is then asked to "open" its session and to "train", which it does for good once it has
answered.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from tensorwire.bench import task_server
from tensorwire.lab.channel import Message, TaskEnd

_SIDE = 256
_START_DEADLINE_S = 60
_WARM_UP = 5


class Worker:
    """A graph with the amounts of work that it was told, and its session."""

    def __init__(self, tf: Any, setup: Message, target: str) -> None:
        self._tf = tf
        self._setup = setup
        self._target = target
        self._device = f"/job:worker/task:{setup['index']}"
        with tf.device(self._device):
            batch = self._input()
        self._train = self._step(batch)

    def _input(self) -> Any:
        """A batch, as late as its storage makes it."""
        v1 = self._tf.compat.v1
        delay_s = self._setup["work"]["input_ms"] / 1e3
        dataset = self._tf.data.Dataset.range(1 << 40).map(
            lambda number: self._after(self._tf.cast(number, self._tf.float32), delay_s)
        )
        iterator = v1.data.make_initializable_iterator(dataset)
        v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        return iterator.get_next()

    def _after(self, value: Any, seconds: float) -> Any:
        """`value`, some time later, with the cores free meanwhile."""

        def wait(given: Any) -> Any:
            time.sleep(seconds)
            return np.asarray(given, np.float32)

        later = self._tf.numpy_function(wait, [value], self._tf.float32)
        later.set_shape([])
        return later

    def _matmuls(self, seed: Any, count: int) -> Any:
        """A number that takes `count` products of matrices to know."""
        tf = self._tf
        start = tf.fill([_SIDE, _SIDE], seed * 1e-9)
        product = start
        for _ in range(count):
            product = tf.matmul(product, start)
        return tf.reduce_sum(product)

    def _step(self, batch: Any) -> Any:
        tf, work = self._tf, self._setup["work"]
        v1 = tf.compat.v1
        with tf.device("/job:ps/task:0"):
            v1.train.get_or_create_global_step()
        variables, reads = [], []
        for table in self._setup["tables"]:
            floats = max(1, round(table["kb"] * 1000 / 4))
            with tf.device(f"/job:ps/task:{table['ps']}"):
                variable = v1.get_variable(
                    table["name"], initializer=tf.zeros([floats]), use_resource=True
                )
                value = variable.read_value()
                if self._setup["ps_matmuls"]:
                    value += self._matmuls(value[0], self._setup["ps_matmuls"])
            variables.append((variable, floats))
            reads.append(value)
        with tf.device(self._device):
            sums = [tf.reduce_sum(tf.identity(value)[:1]) for value in reads]
            total = tf.add_n(sums) + batch * 0.0
            if work["matmuls"]:
                total += self._matmuls(total, work["matmuls"])
            if work["device_ms"]:
                total = self._after(total, work["device_ms"] / 1e3)
        updates = []
        for variable, floats in variables:
            with tf.device(self._device):
                gradient = tf.fill([floats], total * 0.0)
            with tf.device(variable.device):
                updates.append(variable.assign_add(gradient, read_value=False))
        with tf.device(self._device):
            return tf.group(*updates)

    def open(self) -> None:
        """The session, whose variables the first worker initialises."""
        v1 = self._tf.compat.v1
        filters = []
        if self._setup["filters"]:
            filters = ["/job:ps", f"/job:worker/task:{self._setup['index']}"]
        hooks = []
        if self._setup["hook_every"]:
            import tensorwire.tf

            hooks.append(tensorwire.tf.StepBreakdownHook(self._setup["hook_every"]))
        self._session = v1.train.MonitoredTrainingSession(
            master=self._target,
            is_chief=self._setup["index"] == 0,
            config=v1.ConfigProto(device_filters=filters),
            hooks=hooks,
            log_step_count_steps=None,
            max_wait_secs=_START_DEADLINE_S,
        )

    def train(self, channel: TaskEnd) -> None:
        """Takes steps until this process is ended; answers when the first are taken."""
        for _ in range(_WARM_UP):
            self._session.run(self._train)
        channel.send({})
        while True:
            self._session.run(self._train)


def main(channel: TaskEnd) -> None:
    setup = channel.receive() or {}
    tf, server = task_server.start(setup["spec"], setup["job"], setup["index"], setup["protocol"])
    ready = {"tensorflow": tf.__version__}
    if setup["job"] == "ps":
        channel.send(ready)
        channel.exit_with_starter()
        server.join()
        return
    with tf.Graph().as_default():
        worker = Worker(tf, setup, server.target)
        channel.send(ready)
        assert channel.receive() == {"do": "open"}
        worker.open()
        channel.send({})
        assert channel.receive() == {"do": "train"}
        channel.exit_with_starter()
        worker.train(channel)


if __name__ == "__main__":
    task_server.run(main)
