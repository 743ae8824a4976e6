"""One task of a training benchmark: a TensorFlow server, and on a worker the training loop.

:mod:`tensorwire.bench.train` starts it with a channel. The first message is a :class:`TaskConfig`,
answered when the server runs; each further one has a command under "do", and one reply unless it is
said otherwise here:

- ps: ``stats``.
- worker: ``open`` (opens the session), ``run`` (takes steps; a reply after every ``report_every``
  steps, the last with ``steps`` reached), ``trace``, ``stats``, ``evaluate`` (chief) and ``close``.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tensorwire.bench import task_server, traffic
from tensorwire.bench.models import MODELS, examples, wide_deep
from tensorwire.lab.channel import Message, TaskEnd

_EVALUATION_BATCH = 8192
_START_DEADLINE_S = 60


@dataclass(frozen=True)
class TaskConfig:
    """What a task is told when it starts."""

    job: str
    index: int
    spec: Mapping[str, list[str]]
    protocol: str
    tensor_fuse: bool
    model: str
    batch_size: int
    workers: int
    train_file: str
    """Empty where the worker has to make its own."""
    held_out_file: str
    checkpoint_directory: str
    """Empty: no checkpoints."""


class Worker:
    """A training session and its model."""

    def __init__(self, tf: Any, config: TaskConfig, server: Any, channel: TaskEnd) -> None:
        v1 = tf.compat.v1
        self._tf = tf
        self._config = config
        self._channel = channel
        self._target: str = server.target
        self._session: Any = None
        self._columns = MODELS[config.model].columns
        # Workers draw their batches in different orders, the same ones on every protocol.
        v1.set_random_seed(2013 + config.index)
        with v1.device(
            v1.train.replica_device_setter(
                worker_device=f"/job:worker/task:{config.index}",
                cluster=tf.train.ClusterSpec(dict(config.spec)),
            )
        ):
            self._model = wide_deep.build(tf, self._columns, _train_file(config), config.batch_size)

    def open(self) -> Message:
        v1 = self._tf.compat.v1
        config = self._config
        filters = ["/job:ps", f"/job:worker/task:{config.index}"]
        if config.tensor_fuse:
            import tensorwire.tf

            session_config = tensorwire.tf.ConfigProto(tensor_fuse=True, device_filters=filters)
        else:
            session_config = v1.ConfigProto(device_filters=filters)
        self._session = v1.train.MonitoredTrainingSession(
            master=self._target,
            is_chief=config.index == 0,
            checkpoint_dir=config.checkpoint_directory or None,
            config=session_config,
            save_summaries_steps=None,
            save_summaries_secs=None,
            log_step_count_steps=None,
            max_wait_secs=_START_DEADLINE_S,
        )
        return {}

    def run(self, steps: int, report_every: int) -> Message:
        """Takes steps. The reply to the last one is returned, those before it are sent."""
        fetches = [self._model.train, self._model.loss]
        started = time.perf_counter()
        for step in range(1, steps + 1):
            _, loss = self._session.run(fetches)
            report = {
                "steps": step,
                "loss": float(loss),
                "elapsed_s": time.perf_counter() - started,
            }
            if step % report_every == 0 and step < steps:
                self._channel.send(report)
        return report

    def trace(self) -> Message:
        """Counts the calls of one step on grpc, which has no counters.

        TensorFlow logs each RecvTensor of a traced step. With them come a RunGraph and a
        CleanupGraph for each task, other than this one, that the step ran on.
        """
        v1 = self._tf.compat.v1
        metadata = v1.RunMetadata()
        self._session.run(
            [self._model.train, self._model.loss],
            options=v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE),
            run_metadata=metadata,
        )
        devices = metadata.step_stats.dev_stats
        received = sum(
            node.node_name == "RecvTensor" for device in devices for node in device.node_stats
        )
        remote = {device.device.partition("/device:")[0] for device in devices}
        remote.discard(f"/job:worker/replica:0/task:{self._config.index}")
        return {"calls": received + 2 * len(remote)}

    def evaluate(self) -> Message:
        """The AUC on the held-out examples with the variables that the ps have now."""
        held_out = examples.read(Path(self._config.held_out_file), len(self._columns))

        def score(step_context: Any) -> list[Any]:
            # The step context's session runs no hooks: scoring is no training step.
            return [
                step_context.session.run(
                    self._model.logits,
                    {self._model.ids: held_out.ids[begin : begin + _EVALUATION_BATCH]},
                )
                for begin in range(0, len(held_out.ids), _EVALUATION_BATCH)
            ]

        scores = np.concatenate(self._session.run_step_fn(score))
        return {"auc": examples.auc(scores, held_out.labels), "examples": len(held_out.labels)}

    def close(self) -> Message:
        """Ends the session; the chief's writes the last checkpoint."""
        self._session.close()
        return {}


def _train_file(config: TaskConfig) -> Path:
    """This worker's examples; made here, where its starter is on another machine."""
    if config.train_file:
        return Path(config.train_file)
    directory = Path(tempfile.mkdtemp())  # in the cluster's directory, and goes with it
    files = examples.write(directory, config.workers, *MODELS[config.model].load())
    return files.train[config.index]


def _stats(config: TaskConfig) -> Message:
    """The plug-in's counters, and what this host's gRPC connections of the job received."""
    ports = [int(each.rpartition(":")[2]) for job in config.spec.values() for each in job]
    try:
        grpc_bytes: int | None = traffic.received_bytes(ports)
    except traffic.TrafficUnavailable:
        grpc_bytes = None
    seen = {"grpc_bytes": grpc_bytes, "network": traffic.network()}
    if config.protocol == "grpc":
        return seen
    import tensorwire.tf

    return {**tensorwire.tf.stats(), **seen}


def _serve_stats(config: TaskConfig, channel: TaskEnd) -> None:
    """Answers until the benchmark is gone, and then ends this process, which `join` would not."""
    while (message := channel.receive()) is not None:
        assert message["do"] == "stats", message
        channel.send(_stats(config))
    os._exit(0)


def _work(worker: Worker, config: TaskConfig, channel: TaskEnd) -> None:
    commands: dict[str, Callable[..., Message]] = {
        "open": worker.open,
        "run": worker.run,
        "trace": worker.trace,
        "stats": lambda: _stats(config),
        "evaluate": worker.evaluate,
        "close": worker.close,
    }
    while (message := channel.receive()) is not None:
        channel.send(commands[message.pop("do")](**message))


def main(channel: TaskEnd) -> None:
    config = TaskConfig(**(channel.receive() or {}))
    tf, server = task_server.start(
        config.spec, config.job, config.index, config.protocol, config.tensor_fuse
    )
    ready = {"tensorflow": tf.__version__}
    if config.job == "ps":
        channel.send(ready)
        threading.Thread(target=_serve_stats, args=(config, channel), daemon=True).start()
        server.join()
        return
    with tf.Graph().as_default():
        worker = Worker(tf, config, server, channel)
        channel.send(ready)
        _work(worker, config, channel)


if __name__ == "__main__":
    task_server.run(main)
