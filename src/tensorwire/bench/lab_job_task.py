"""One task of a job of `bench.lab_job`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorwire.bench.models import MODELS, wide_deep
from tensorwire.bench.server_task import ServerTask
from tensorwire.lab.channel import Message
from tensorwire.measure.task import request

_SIDE = 256
_START_DEADLINE_S = 60


@dataclass(frozen=True)
class TableVariable:
    """A variable of float32, or a part of one, and its ps."""

    floats: int
    ps: int = 0


@dataclass(frozen=True)
class StepCase:
    """What a step does: a model of `bench train`, or tables and products of 256 x 256 matrices."""

    name: str
    model: str = ""
    batch_size: int = 256
    tables: tuple[TableVariable, ...] = ()
    matmuls: int = 0
    pull: bool = True
    push: bool = True
    is_local: bool = False
    """Whether the tables are on the worker itself: what is left of a step without a ps."""


class LabJobWorker(ServerTask):
    """A worker: the graph of one case after the other, and its session."""

    _graph: Any = None
    _session: Any = None
    _train: Any = None

    @request
    def build(self, case: StepCase, train_files: Sequence[str] = ()) -> Message:
        """Makes a case's graph."""
        self._graph = self._tf.Graph()
        with self._graph.as_default():
            self._train = self._trained(case, train_files) if case.model else self._made(case)
        return {}

    @request
    def open(self) -> Message:
        """Opens the case's session; the first worker's initialises the variables."""
        v1 = self._tf.compat.v1
        with self._graph.as_default():
            self._session = v1.train.MonitoredTrainingSession(
                master=self.target,
                is_chief=self._index == 0,
                config=self._session_config(["/job:ps", self._device]),
                save_summaries_steps=None,
                save_summaries_secs=None,
                log_step_count_steps=None,
                max_wait_secs=_START_DEADLINE_S,
            )
        return {}

    @request
    def run(self, seconds: float, steps: int, delay_s: float, around: int) -> Message:
        """Steps until `seconds` are over, but `steps` of them at least.

        `around` more before and after are not counted: other workers begin and end meanwhile.
        """
        time.sleep(delay_s)
        for _ in range(around):
            self._session.run(self._train)
        took: list[float] = []
        began = last = time.perf_counter()
        while last < began + seconds or len(took) < steps:
            self._session.run(self._train)
            now = time.perf_counter()
            took.append(now - last)
            last = now
        for _ in range(around):
            self._session.run(self._train)
        return {"step_s": took, "steps": len(took) + 2 * around}

    @request
    def close(self) -> Message:
        self._session.close()
        return {}

    def _trained(self, case: StepCase, train_files: Sequence[str]) -> Any:
        """A real model, as `bench train` has it."""
        v1, tf = self._tf.compat.v1, self._tf
        v1.set_random_seed(2013 + self._index)
        setter = v1.train.replica_device_setter(
            worker_device=self._device, cluster=tf.train.ClusterSpec(self._spec)
        )
        with v1.device(setter):
            columns = MODELS[case.model].columns
            file = Path(train_files[self._index])
            return wide_deep.build(tf, columns, file, case.batch_size).train

    def _made(self, case: StepCase) -> Any:
        """Reads variables, computes, and adds gradients, as the case says."""
        tf, v1 = self._tf, self._tf.compat.v1

        def place(table: TableVariable) -> str:
            return self._device if case.is_local else f"/job:ps/task:{table.ps}"

        with tf.device(place(TableVariable(0))):
            v1.train.get_or_create_global_step()
        variables = []
        for number, table in enumerate(case.tables):
            with tf.device(place(table)):
                zeros = tf.zeros([table.floats])
                variables.append(
                    v1.get_variable(f"table{number}", initializer=zeros, use_resource=True)
                )
        with tf.device(self._device):
            # What no pass over the graph can compute ahead.
            total = tf.cast(tf.timestamp(), tf.float32) * 1e-20
        if case.pull and variables:
            reads = []
            for variable in variables:
                with tf.device(variable.device):
                    reads.append(variable.read_value())
            with tf.device(self._device):
                # That it has arrived, and not what is in it: a worker needs all of it.
                total += tf.add_n([tf.reduce_sum(value[:1]) for value in reads])
        with tf.device(self._device):
            start = tf.fill([_SIDE, _SIDE], total)
            product = start
            for _ in range(case.matmuls):
                product = tf.matmul(product, start)
            if case.matmuls:
                total += tf.reduce_sum(product) * 1e-9
        updates = []
        if case.push:
            for number, variable in enumerate(variables):
                with tf.device(self._device):
                    # None is like another, or TensorFlow would make and send it once.
                    gradient = tf.fill(variable.shape, total + number * 1e-9)
                with tf.device(variable.device):
                    updates.append(variable.assign_add(gradient, read_value=False))
        with tf.device(self._device):
            # Fetched, or TensorFlow would compute nothing that only leads to it.
            return tf.group(*updates), total
