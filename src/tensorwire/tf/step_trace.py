"""The operations of a step and their times, from TensorFlow's own traces."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from tensorwire.metrics.breakdown import (
    TOTALS,
    Interval,
    StepBreakdown,
    StepTrace,
    Waits,
    break_down,
)
from tensorwire.plugin.loader import stats

# Kernels that wait for input. The input itself is made in other threads.
_INPUT = re.compile(
    r"(MultiDevice)?IteratorGetNext|(One|Make)\w*Iterator|ReduceDataset|DatasetToSingleElement"
    r"|Queue\w*Dequeue|Reader\w*Read|MapUnstage|OrderedMapUnstage|Unstage"
)
# Kernels that wait for another task, or do nothing.
_WAITING = re.compile(
    r"_?(Host)?(Send|Recv)|NoOp|RemoteCall|(Stateful)?PartitionedCall|_?Retval|_?Arg"
)


def from_run_metadata(metadata: Any, own_task: str) -> StepTrace:
    """Reads a step that ran with ``trace_level=FULL_TRACE``, in microseconds since 1970.

    `own_task` has the form "/job:worker/replica:0/task:0"; without a cluster it is not used.
    """
    compute: list[Interval] = []
    waiting: list[Interval] = []
    others: dict[str, list[Interval]] = {}
    for device in metadata.step_stats.dev_stats:
        task = device.device.partition("/device:")[0]
        own = task == own_task or "/job:" not in task or task.startswith("/job:localhost")
        for node in device.node_stats:
            begin = node.all_start_micros
            interval = (begin, begin + node.all_end_rel_micros)
            operation = _operation(node)
            if _WAITING.fullmatch(operation):
                continue
            if not own:
                others.setdefault(task, []).append(interval)
            elif _INPUT.match(operation):
                waiting.append(interval)
            else:
                compute.append(interval)
    return StepTrace(compute, waiting, others)


def _operation(node: Any) -> str:
    """The operation in a label "name = Operation(inputs)", or else the whole label."""
    found = re.search(r" = (\w+)\(", node.timeline_label)
    return found[1] if found else str(node.timeline_label or node.node_name)


class FunctionTrace:
    """Traces the operations of this process from now until `stop`, with TensorFlow's profiler.

    Functions of TF2 have no RunMetadata with their kernels. If another profile is running, or this
    TensorFlow has its profiler elsewhere, the trace is empty, and own compute counts as rest.
    """

    def __init__(self) -> None:
        self._session: Any = None
        self._began_us = 0.0
        try:
            from tensorflow.python.profiler.internal import _pywrap_profiler

            session = _pywrap_profiler.ProfilerSession()
            session.start(
                "", {"host_tracer_level": 2, "python_tracer_level": 0, "device_tracer_level": 0}
            )
            self._session = session
        except Exception:  # a failed trace must not stop the step
            return
        self._began_us = time.time() * 1e6

    def stop(self) -> StepTrace:
        """The operations that ran, in microseconds since 1970."""
        if self._session is None:
            return StepTrace()
        try:
            from tensorflow.tsl.profiler.protobuf import trace_events_pb2

            trace = trace_events_pb2.Trace.FromString(self._session.stop())
        except Exception:  # as above
            return StepTrace()
        return _from_events(trace, self._began_us)


def _from_events(trace: Any, began_us: float) -> StepTrace:
    """Converts the events, whose times are relative to the start of the profile."""

    def interval(event: Any) -> Interval:
        begin = began_us + event.timestamp_ps / 1e6
        return begin, begin + event.duration_ps / 1e6

    # Functions that tf.data maps run in their own executors, ahead of the step that uses them.
    pipeline = {
        event.args["id"]
        for event in trace.trace_events
        if event.name == "InstantiatedCapturedFunction::Run" and "id" in event.args
    }
    ahead = [
        (event.resource_id, event.timestamp_ps, event.timestamp_ps + event.duration_ps)
        for event in trace.trace_events
        if event.name == "ExecutorState::Process" and event.args.get("id") in pipeline
    ]
    compute: list[Interval] = []
    waiting: list[Interval] = []
    for event in trace.trace_events:
        operation = event.args["long_name"].rpartition(":")[2] if "long_name" in event.args else ""
        if event.name == "IteratorGetNextOp::DoCompute" or _INPUT.match(operation):
            waiting.append(interval(event))
        elif (
            operation
            and operation == event.name
            and not _WAITING.fullmatch(operation)
            and not any(
                thread == event.resource_id and begin <= event.timestamp_ps < end
                for thread, begin, end in ahead
            )
        ):
            compute.append(interval(event))
    return StepTrace(compute, waiting)


class StepTimer:
    """Splits the time of every `every_steps`-th step. Tracing makes these steps slower.

        timer = tensorwire.tf.StepTimer()
        for _ in range(steps):
            with timer.step():
                with timer.input():
                    batch = next(batches)
                train_step(batch)
        print(timer.last)

    An iterator that is read within a function counts as input even without `input`. Waiting for a
    ps that works, but sends no tensor to this task, counts as rest.
    """

    def __init__(
        self, every_steps: int = 100, on_step: Callable[[StepBreakdown], None] | None = None
    ) -> None:
        """`on_step` is called with each breakdown."""
        if every_steps < 1:
            raise ValueError("every_steps is at least 1")
        self._every_steps = every_steps
        self._on_step = on_step
        self._count = 0
        self._inputs: list[Interval] = []
        self.last: StepBreakdown | None = None
        """Breakdown of the last sampled step."""

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """A context manager around one step. A step that an exception leaves is not counted."""
        self._count += 1
        if self._count % self._every_steps != 0:
            yield
            return
        self._inputs = []
        before = Waits.of(stats())
        trace = FunctionTrace()
        begin_us = time.time() * 1e6
        try:
            yield
        finally:
            end_us = time.time() * 1e6
            seen = trace.stop()
        after = Waits.of(stats())
        everything = StepTrace(seen.compute, [*seen.input, *self._inputs], seen.others)
        self.last = break_down(self._count, begin_us, end_us, everything, before, after)
        TOTALS.add(self.last)
        if self._on_step is not None:
            self._on_step(self.last)

    @contextlib.contextmanager
    def input(self) -> Iterator[None]:
        """A context manager, within `step`, around the code that fetches the step's input."""
        begin_us = time.time() * 1e6
        try:
            yield
        finally:
            self._inputs.append((begin_us, time.time() * 1e6))
