"""One task of a training benchmark: a TensorFlow server, and on a worker the training loop."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tensorwire.bench.experiments import traffic
from tensorwire.bench.experiments.server_task import ServerTask
from tensorwire.bench.frame.hosted_task import request
from tensorwire.bench.lab.channel import Message
from tensorwire.bench.models import MODELS, examples, wide_deep

_EVALUATION_BATCH = 8192
_START_DEADLINE_S = 60


class TrainTask(ServerTask):
    """A ps."""

    @request
    def stats(self) -> Message:
        """The plug-in's counters, and the bytes that the job's gRPC connections received here."""
        ports = [int(each.rpartition(":")[2]) for job in self._spec.values() for each in job]
        try:
            grpc_bytes: int | None = traffic.received_bytes(ports)
        except traffic.TrafficUnavailable:
            grpc_bytes = None
        return {**self.wire(), "grpc_bytes": grpc_bytes, "network": traffic.network()}


class TrainWorker(TrainTask):
    """A worker: a training session and its model."""

    def __init__(
        self,
        spec: Mapping[str, Sequence[str]],
        job: str,
        index: int,
        protocol: str,
        rewrites: Sequence[str],
        model: str,
        batch_size: int,
        seed: int,
        train_file: str,
        held_out_file: str,
        checkpoint_directory: str,
    ) -> None:
        """Starts the server and builds the model.

        Args:
            train_file: empty if the worker must make its own file.
            checkpoint_directory: empty for no checkpoints.
        """
        super().__init__(spec, job, index, protocol, rewrites)
        tf, v1 = self._tf, self._tf.compat.v1
        self._session: Any = None
        self._held_out_file = held_out_file
        self._checkpoint_directory = checkpoint_directory
        self._columns = MODELS[model].columns
        self._enter_graph()
        # Each worker has its own order of batches, which is the same for every protocol.
        v1.set_random_seed(seed + index)
        setter = v1.train.replica_device_setter(
            worker_device=self._device, cluster=tf.train.ClusterSpec(self._spec)
        )
        with v1.device(setter):
            file = Path(train_file) if train_file else self._made_train_file(model)
            self._model = wide_deep.build(tf, self._columns, file, batch_size)

    def _made_train_file(self, model: str) -> Path:
        """This worker's examples, made here because the measuring process is on another machine."""
        directory = Path(tempfile.mkdtemp())  # in the cluster's directory, which removes it
        files = examples.write(directory, len(self._spec["worker"]), *MODELS[model].load())
        return files.train[self._index]

    @request
    def open(self) -> Message:
        """Opens the session; the chief's session initializes the variables."""
        self._session = self._tf.compat.v1.train.MonitoredTrainingSession(
            master=self.target,
            is_chief=self._index == 0,
            checkpoint_dir=self._checkpoint_directory or None,
            config=self._session_config(["/job:ps", self._device]),
            save_summaries_steps=None,
            save_summaries_secs=None,
            log_step_count_steps=None,
            max_wait_secs=_START_DEADLINE_S,
        )
        return {}

    @request
    def run(self, steps: int, report_every: int) -> Iterator[Message]:
        """Runs steps, and yields a report after every `report_every` steps and after the last."""
        fetches = [self._model.train, self._model.loss]
        started = time.perf_counter()
        for step in range(1, steps + 1):
            _, loss = self._session.run(fetches)
            if step % report_every == 0 or step == steps:
                elapsed_s = time.perf_counter() - started
                yield {"steps": step, "loss": float(loss), "elapsed_s": elapsed_s}

    @request
    def trace(self) -> Message:
        """Counts the calls of one step, and the operations on the busiest ps.

        On grpc, TensorFlow logs each RecvTensor of a traced step. In addition there are one
        RunGraph and one CleanupGraph for each other task of the step.
        """
        v1 = self._tf.compat.v1
        metadata = v1.RunMetadata()
        self._session.run(
            [self._model.train, self._model.loss],
            options=v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE),
            run_metadata=metadata,
        )
        devices = metadata.step_stats.dev_stats
        received = 0
        operations = dict.fromkeys((d.device.partition("/device:")[0] for d in devices), 0)
        for device in devices:
            calls = sum(node.node_name == "RecvTensor" for node in device.node_stats)
            received += calls
            task = device.device.partition("/device:")[0]
            operations[task] += len(device.node_stats) - calls
        remote = operations.keys() - {f"/job:worker/replica:0/task:{self._index}"}
        of_ps = [count for task, count in operations.items() if task.startswith("/job:ps")]
        return {"calls": received + 2 * len(remote), "ps_operations": max(of_ps, default=0)}

    @request
    def evaluate(self) -> Message:
        """The AUC on the held-out examples with the current variables."""
        held_out = examples.read(Path(self._held_out_file), len(self._columns))

        def score(step_context: Any) -> list[Any]:
            # The step context's session runs no hooks, because scoring is not a training step.
            return [
                step_context.session.run(
                    self._model.logits,
                    {self._model.ids: held_out.ids[begin : begin + _EVALUATION_BATCH]},
                )
                for begin in range(0, len(held_out.ids), _EVALUATION_BATCH)
            ]

        scores = np.concatenate(self._session.run_step_fn(score))
        return {"auc": examples.auc(scores, held_out.labels), "examples": len(held_out.labels)}

    @request
    def close(self) -> Message:
        """Ends the session; the chief's session writes the last checkpoint."""
        self._session.close()
        return {}
