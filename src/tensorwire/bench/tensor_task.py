"""A ps or worker that moves tensors when it is told to.

It measures what a user's script sees: `session.run(op)` of a graph-mode session on the worker's own
server, Python's part of it included. The op assigns the worker's variables to the ps's and returns
nothing. The variables are drawn at random at run time, so that no graph optimizer can turn the
transfer into a constant.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tensorwire.bench.server_task import ServerTask
from tensorwire.lab.channel import Message
from tensorwire.measure.task import request, used_cpu_s


class TensorTask(ServerTask):
    """The server, and the graphs that were built on it."""

    def __init__(
        self,
        spec: Mapping[str, Sequence[str]],
        job: str,
        index: int,
        protocol: str,
        tensor_fuse: bool,
    ) -> None:
        """Starts the server; see ServerTask."""
        super().__init__(spec, job, index, protocol, tensor_fuse)
        self._cases: dict[str, tuple[Any, Any, Any]] = {}

    @request
    def build(self, case: str, tensors: int, floats: int) -> Message:
        """A session, and an op that assigns `tensors` vectors of `floats` float32 each."""
        v1 = self._tf.compat.v1
        # The benchmark is about the way between tasks: on an accelerator the way to host memory
        # would be measured too.
        ps, worker = "/job:ps/task:0/device:CPU:0", "/job:worker/task:0/device:CPU:0"
        with self._tf.Graph().as_default() as graph:
            assigns: list[Any] = []
            sums: dict[str, list[Any]] = {ps: [], worker: []}
            for index in range(tensors):
                variables = {}
                for device in (ps, worker):
                    with self._tf.device(device):
                        variables[device] = v1.get_variable(
                            f"{case}_{'ps' if device == ps else 'worker'}_{index}",
                            initializer=_random(self._tf, floats)
                            if device == worker
                            else self._tf.zeros([floats]),
                            use_resource=True,
                        )
                        # Of the bits, and wrapping around: equal only for equal tensors, almost.
                        bits = self._tf.bitcast(variables[device].read_value(), self._tf.int32)
                        sums[device].append(self._tf.reduce_sum(bits))
                with self._tf.device(ps):
                    assigns.append(variables[ps].assign(variables[worker], read_value=False))
            with self._tf.device(ps):
                op = assigns[0] if tensors == 1 else self._tf.group(*assigns)
            totals = []
            for device, parts in sums.items():
                with self._tf.device(device):
                    totals.append(self._tf.stack(parts))
            session = v1.Session(self.target, graph=graph, config=self._session_config())
            session.run(v1.global_variables_initializer())
        self._cases[case] = (session, op, totals)
        return {}

    @request
    def run(self, case: str, iters: int) -> Message:
        """Seconds of each of `iters` steps, and the CPU seconds of this process."""
        session, op, _ = self._cases[case]
        times = []
        gc.disable()
        cpu = used_cpu_s()
        try:
            for _ in range(iters):
                begin = time.perf_counter()
                session.run(op)
                times.append(time.perf_counter() - begin)
        finally:
            cpu = used_cpu_s() - cpu
            gc.enable()
        return {"step_s": times, "cpu_s": cpu}

    @request
    def verify(self, case: str) -> Message:
        """Whether the ps now has what the worker has."""
        session, _, totals = self._cases[case]
        on_ps, on_worker = session.run(totals)
        return {"equal": bool((on_ps == on_worker).all())}


def _random(tf: Any, floats: int) -> Any:
    """Drawn by the device, in the step that initializes: the graph holds no large constant."""
    return tf.random.uniform([floats], minval=-1.0, maxval=1.0)
