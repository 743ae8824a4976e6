"""The coordinator of a ParameterServerStrategy.

It measures what a user's script sees: functions that `ClusterCoordinator.schedule` hands to the
worker, until `join` has seen the last of them, Python's part of it included.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tensorwire.bench.server_task import GRPCPP, PluginTask
from tensorwire.lab.channel import Message
from tensorwire.measure.task import request

READ_FLOATS = 2_500_000
"""Size of the variable that "read" sums: 10 MB."""


class CoordinatorTask(PluginTask):
    """The strategy, its coordinator, and the functions of each case."""

    def __init__(self, spec: Mapping[str, Sequence[str]], protocol: str) -> None:
        """Connects to the ps and the worker, which must have started."""
        super().__init__(needs_plugin=protocol == GRPCPP)
        tf = self._tf
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(dict(spec)), rpc_layer=protocol
        )
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            # Drawn at random, so that no optimizer can make a constant of the sum.
            table = tf.Variable(tf.random.uniform([READ_FLOATS]))
        number = tf.constant(1.0)

        @tf.function  # type: ignore[untyped-decorator]
        def read() -> Any:
            return tf.reduce_sum(table)

        @tf.function  # type: ignore[untyped-decorator]
        def tiny(value: Any) -> Any:
            return value + 1.0

        # The sum of floats depends on the order of the additions a little.
        self._cases: dict[str, tuple[Any, tuple[Any, ...], float]] = {
            "read": (read, (), float(tf.reduce_sum(table.read_value()))),
            "tiny": (tiny, (number,), 2.0),
        }

    @request
    def run(self, case: str, iters: int) -> Message:
        """Seconds from the first `schedule` of `iters` to the end of the last function.

        The results are kept, as a script keeps its losses: so each comes to the coordinator, and
        the function has surely run.
        """
        function, arguments, expected = self._cases[case]
        gc.disable()
        try:
            begin = time.perf_counter()
            results = [self._coordinator.schedule(function, args=arguments) for _ in range(iters)]
            self._coordinator.join()
            seconds = time.perf_counter() - begin
        finally:
            gc.enable()
        right = all(math.isclose(r.fetch(), expected, rel_tol=1e-4) for r in results)
        return {"seconds": seconds, "right": right}
