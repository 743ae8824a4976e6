"""The tasks of a job of `faults`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorwire.bench.experiments.tensors import ServerTask
from tensorwire.bench.frame.tasks import request
from tensorwire.bench.lab.channel import Message

_SIDE = 256
_START_DEADLINE_S = 60
_WARM_UP = 5


@dataclass(frozen=True)
class Table:
    """A variable of the job."""

    name: str
    kb: float
    ps: int


@dataclass(frozen=True)
class Work:
    """Work of a step, in addition to moving variables."""

    input_ms: float = 0.5
    device_ms: float = 6.0
    """Milliseconds of simulated accelerator computation, without CPU use."""
    matmuls: int = 0
    """Number of products of 256 x 256 matrices on the worker's cores."""
    is_stuck: bool = False
    """True if the worker, after its first steps, waits for a queue of ps:0 that stays empty."""


class FaultWorker(ServerTask):
    """A worker with a configurable amount of work per step."""

    def __init__(
        self,
        spec: Mapping[str, Sequence[str]],
        job: str,
        index: int,
        protocol: str,
        tables: Sequence[Table],
        work: Work,
        ps_matmuls: int,
        filters: bool,
        hook_every: int,
    ) -> None:
        super().__init__(spec, job, index, protocol)
        self._tables = tables
        self._work = work
        self._ps_matmuls = ps_matmuls
        self._filters = filters
        self._hook_every = hook_every
        self._session: Any = None
        self._enter_graph()
        with self._tf.device(self._device):
            batch = self._input()
        self._train = self._step(batch)
        with self._tf.device("/job:ps/task:0"):
            queue = self._tf.queue.FIFOQueue(1, [self._tf.int64], [[]], shared_name="tokens")
            token = queue.dequeue(name="token")
        with self._tf.device(self._device):
            self._token = token + 1

    def _input(self) -> Any:
        """A batch, with the delay of the simulated storage."""
        v1 = self._tf.compat.v1
        delay_s = self._work.input_ms / 1e3
        dataset = self._tf.data.Dataset.range(1 << 40).map(
            lambda number: self._after(self._tf.cast(number, self._tf.float32), delay_s)
        )
        iterator = v1.data.make_initializable_iterator(dataset)
        v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        return iterator.get_next()

    def _after(self, value: Any, seconds: float) -> Any:
        """`value` after a delay that uses no CPU."""

        def wait(given: Any) -> Any:
            time.sleep(seconds)
            return np.asarray(given, np.float32)

        later = self._tf.numpy_function(wait, [value], self._tf.float32)
        later.set_shape([])
        return later

    def _matmuls(self, seed: Any, count: int) -> Any:
        """A number whose computation needs `count` products of matrices."""
        tf = self._tf
        start = tf.fill([_SIDE, _SIDE], seed * 1e-9)
        product = start
        for _ in range(count):
            product = tf.matmul(product, start)
        return tf.reduce_sum(product)

    def _step(self, batch: Any) -> Any:
        tf, work = self._tf, self._work
        v1 = tf.compat.v1
        with tf.device("/job:ps/task:0"):
            v1.train.get_or_create_global_step()
        variables, reads = [], []
        for table in self._tables:
            floats = max(1, round(table.kb * 1000 / 4))
            with tf.device(f"/job:ps/task:{table.ps}"):
                variable = v1.get_variable(
                    table.name, initializer=tf.zeros([floats]), use_resource=True
                )
                value = variable.read_value()
                if self._ps_matmuls:
                    value += self._matmuls(value[0], self._ps_matmuls)
            variables.append((variable, floats))
            reads.append(value)
        with tf.device(self._device):
            sums = [tf.reduce_sum(tf.identity(value)[:1]) for value in reads]
            total = tf.add_n(sums) + batch * 0.0
            if work.matmuls:
                total += self._matmuls(total, work.matmuls)
            if work.device_ms:
                total = self._after(total, work.device_ms / 1e3)
        updates = []
        for variable, floats in variables:
            with tf.device(self._device):
                gradient = tf.fill([floats], total * 0.0)
            with tf.device(variable.device):
                updates.append(variable.assign_add(gradient, read_value=False))
        with tf.device(self._device):
            return tf.group(*updates)

    @request
    def open(self) -> Message:
        """Opens the session; the first worker initializes the variables."""
        hooks = []
        if self._hook_every:
            import tensorwire.tf

            hooks.append(tensorwire.tf.StepBreakdownHook(self._hook_every))
        self._session = self._tf.compat.v1.train.MonitoredTrainingSession(
            master=self.target,
            is_chief=self._index == 0,
            config=self._session_config(["/job:ps", self._device] if self._filters else ()),
            hooks=hooks,
            log_step_count_steps=None,
            max_wait_secs=_START_DEADLINE_S,
        )
        return {}

    @request
    def train(self) -> Iterator[Message]:
        """Runs steps until this process is ended; answers after the first steps."""
        for _ in range(_WARM_UP):
            self._session.run(self._train)
        yield {}
        if self._work.is_stuck:
            self._session.run(self._token)
        while True:
            self._session.run(self._train)
