"""Helpers of the integration tests: clusters of TensorFlow servers, and sessions on them."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from harness import tally, zygote
from tensorwire.bench.lab import LocalCluster, TaskProcess
from tensorwire.errors import TensorwireError

tf1 = tf.compat.v1

PROTOCOLS = ("grpc", "grpc++")
START_TIMEOUT_S = 120.0
# Longer than any step of these tests, even on a busy machine; a step that hangs is an error.
STEP_TIMEOUT_MS = 60_000
_SERVER_TASK = Path(__file__).with_name("server_task.py")


def task_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Two intra-op threads per task, so that rounding does not depend on the machine."""
    return {
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "TF_NUM_INTRAOP_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": "-1",
        **(extra or {}),
    }


class TensorFlowCluster:
    """A LocalCluster whose tasks are TensorFlow servers of one protocol.

    The test is the client: it opens sessions on a worker's gRPC address, as a notebook would. Tasks
    on grpc load the plug-in only on request.
    """

    def __init__(
        self,
        protocol: str,
        jobs: Mapping[str, int],
        plugin: bool = False,
        devices: Mapping[str, Path] | None = None,
        cpus: int = 1,
        imports: Sequence[str] = (),
    ) -> None:
        """Starts nothing yet.

        Args:
            devices: libraries with a pluggable device, by task name.
            cpus: CPU devices of each task.
            imports: modules that each task imports.
        """
        self.protocol = protocol
        self.plugin = plugin or protocol == "grpc++"
        self.devices = {task: str(library) for task, library in (devices or {}).items()}
        self.cpus = cpus
        self.imports = list(imports)
        self.local = LocalCluster(jobs)
        self.tasks: dict[str, TaskProcess] = {}
        self.mapped: dict[str, str] = {}  # data addresses, for tests that write a map
        self.at_end = contextlib.ExitStack()  # what is closed while the tasks still run

    @property
    def spec(self) -> dict[str, list[str]]:
        return self.local.spec

    def __enter__(self) -> TensorFlowCluster:
        self.local.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        try:
            self.at_end.close()
        finally:
            self._end_tasks(*exception)

    def _end_tasks(self, *exception: Any) -> None:
        if self.plugin and exception == (None, None, None):
            for name, task in self.tasks.items():
                with contextlib.suppress(TensorwireError):  # it was killed, or has ended
                    if task.poll() is None:
                        tally.count_bytes(self.stats(name))
        self.local.__exit__(*exception)

    def begin(
        self,
        job: str,
        index: int,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        spec: Mapping[str, list[str]] | None = None,
        serves: int | None = None,
    ) -> TaskProcess:
        """Starts a server without waiting for it. `serves`: another index that it should use."""
        arguments = {
            "spec": dict(spec or self.spec),
            "job": job,
            "index": index if serves is None else serves,
            "protocol": self.protocol,
            "plugin": self.plugin,
            "device": self.devices.get(f"{job}:{index}"),
            "cpus": self.cpus,
            "imports": self.imports,
        }
        task = self.local.start(
            job,
            index,
            [sys.executable, str(_SERVER_TASK), json.dumps(arguments)],
            env=task_environment(env),
            channel=True,
            cwd=cwd,
        )
        self.tasks[f"{job}:{index}"] = task
        return task

    def ready(self, *tasks: TaskProcess) -> None:
        """Waits until each of the tasks serves."""
        for task in tasks:
            hear(task)

    def start_all(self, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
        tasks = [
            self.begin(job, index, env, cwd)
            for job, addresses in self.spec.items()
            for index in range(len(addresses))
        ]
        self.ready(*tasks)

    def target(self, name: str = "worker:0") -> str:
        """The address of a master session. The client speaks gRPC in both protocols."""
        job, index = name.split(":")
        return f"grpc://{self.spec[job][int(index)]}"

    @contextlib.contextmanager
    def session(
        self,
        graph: tf.Graph,
        master: str = "worker:0",
        step_timeout_ms: int = STEP_TIMEOUT_MS,
        **experimental: Any,
    ) -> Iterator[Any]:
        """A session on a task. `experimental` sets fields of ConfigProto.Experimental."""
        config = session_config(step_timeout_ms, **experimental)
        with tf1.Session(self.target(master), graph, config) as session:
            yield session

    def run(
        self,
        build: Callable[[], Any],
        feed: Mapping[str, Any] | None = None,
        master: str = "worker:0",
        step_timeout_ms: int = STEP_TIMEOUT_MS,
    ) -> Any:
        """Builds a graph and runs the fetches of `build` for one step in a new session.

        Args:
            build: called with the new graph as default; returns the fetches.
            feed: values by the names of placeholders, without ":0".
        """
        with tf.Graph().as_default() as graph:
            fetches = build()
            with self.session(graph, master, step_timeout_ms) as session:
                return session.run(fetches, {f"{k}:0": v for k, v in (feed or {}).items()})

    def stats(self, name: str) -> dict[str, int]:
        """The counters of a task's plug-in."""
        reply = self.tasks[name].channel.request({"ask": "stats"}, 30)
        stats: dict[str, int] = reply["stats"]
        return stats

    def log_sizes(self) -> dict[str, int]:
        return {name: task.log.stat().st_size for name, task in self.tasks.items()}

    def logged_since(self, sizes: Mapping[str, int]) -> str:
        """All lines that tasks have logged since `log_sizes` returned `sizes`."""
        parts = []
        for name, task in self.tasks.items():
            with task.log.open("rb") as file:
                file.seek(sizes.get(name, 0))
                parts.append(file.read().decode(errors="replace"))
        return "".join(parts)


class ClusterPool:
    """Running clusters that tests share, by their settings.

    A context manager that ends them. Tests must leave no session or resource that another test
    could see, so they use unique names for shared resources.
    """

    def __init__(self, most: int = 4) -> None:
        """Keeps `most` clusters, those used last."""
        self._most = most
        self._clusters: dict[str, TensorFlowCluster] = {}  # the last used at the end

    def __enter__(self) -> ClusterPool:
        return self

    def __exit__(self, *exception: object) -> None:
        while self._clusters:
            self._end(next(iter(self._clusters)))

    def _end(self, key: str) -> None:
        self._clusters.pop(key).__exit__(None, None, None)

    def get(
        self,
        protocol: str,
        jobs: Mapping[str, int],
        env: Mapping[str, str] | None = None,
        plugin: bool = False,
        cpus: int = 1,
    ) -> TensorFlowCluster:
        """A running cluster with these settings. `env`: for all its tasks."""
        key = json.dumps([protocol, dict(jobs), dict(env or {}), plugin, cpus], sort_keys=True)
        if key in self._clusters:
            self._clusters[key] = self._clusters.pop(key)
            return self._clusters[key]
        if len(self._clusters) >= self._most:
            self._end(next(iter(self._clusters)))
        with contextlib.ExitStack() as undo:
            cluster = undo.enter_context(TensorFlowCluster(protocol, jobs, plugin, cpus=cpus))
            cluster.start_all(env)
            undo.pop_all()
        self._clusters[key] = cluster
        return cluster

    def drop_dead(self) -> list[str]:
        """Ends the clusters of which a task has ended, and tells how each such task ended."""
        told = []
        for key, cluster in list(self._clusters.items()):
            ended = [task for task in cluster.tasks.values() if task.poll() is not None]
            told += [str(cluster.local.error_of(task)) for task in ended]
            if ended:
                self._end(key)
        return told


def hear(task: TaskProcess, timeout_s: float = START_TIMEOUT_S) -> dict[str, Any]:
    """The next message of a task. After a timeout, the error contains the end of its log."""
    try:
        return task.channel.receive(timeout_s)
    except TensorwireError as error:
        raise AssertionError(f"{error}; its log ends:\n{task.tail(40)}") from None


def session_config(step_timeout_ms: int = STEP_TIMEOUT_MS, **experimental: Any) -> Any:
    """A config without graph rewrites, so that operations stay on the tasks that a test chose."""
    config = tf1.ConfigProto(operation_timeout_in_ms=step_timeout_ms)
    for field, value in experimental.items():
        setattr(config.experimental, field, value)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = tf1.OptimizerOptions.L0
    return config


def results_of(command: Sequence[str], timeout_s: float = 200) -> Any:
    """The JSON that a script prints after "RESULTS"."""
    done = zygote.run(command, timeout_s=timeout_s)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULTS "))
    return json.loads(line.removeprefix("RESULTS "))


def outcome(act: Callable[[], Any]) -> tuple[str, Any]:
    """The outcome of `act`: ("value", result), or the error's class and message."""
    try:
        return "value", act()
    except tf.errors.OpError as error:
        return type(error).__name__, essence(error.message)


def essence(message: str) -> str:
    """An error's message without parts that vary between runs or name internals of gRPC."""
    kept = [
        line
        for line in message.splitlines()
        if line.strip()
        and line != "Graph execution error:"
        and not line.startswith(("Additional GRPC", ":{", ":UNKNOWN:Error"))
    ]
    return re.sub(r"\b(0x)?[0-9a-f]{6,}\b|\b\d{6,}\b", "#", "\n".join(kept))
