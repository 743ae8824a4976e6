"""A real ps/worker job in a lab: each task is on its own host with its own link.

It measures what the planner predicts from one worker and one ps. A case is one of the models of
`bench train`, or consists of tables: a step reads each table, computes, and adds a gradient to
each.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from tensorwire.bench.experiments.tensors import ClusterTasks, ServerTask
from tensorwire.bench.experiments.train import TrainTask
from tensorwire.bench.frame.tasks import Watcher, request
from tensorwire.bench.frame.variants import Setting
from tensorwire.bench.lab import HostSettings, Lab, LabSettings, LocalCluster
from tensorwire.bench.lab.channel import Message
from tensorwire.bench.models import MODELS, examples

_SIDE = 256
_SEED = 2013


@dataclass(frozen=True)
class TableVariable:
    """A float32 variable, or a part of one, and its ps."""

    floats: int
    ps: int = 0


@dataclass(frozen=True)
class StepCase:
    """The work of a step: a model of `bench train`, or tables and products of square matrices."""

    name: str
    model: str = ""
    batch_size: int = 256
    tables: tuple[TableVariable, ...] = ()
    matmuls: int = 0
    pull: bool = True
    push: bool = True
    is_local: bool = False
    """True if the worker holds the tables itself, which measures a step without a ps."""


class LabJobWorker(TrainTask):
    """A worker: it holds the graph and the session of one case at a time."""

    _graph: Any = None
    _session: Any = None
    _train: Any = None

    @request
    def build(self, case: StepCase, train_files: Sequence[str] = ()) -> Message:
        """Builds the graph of a case."""
        self._graph = self._tf.Graph()
        with self._graph.as_default():
            if case.model:
                file = Path(train_files[self._index])
                self._train = self.build_model(case.model, file, case.batch_size, _SEED).train
            else:
                self._train = self._made(case)
        return {}

    @request
    def open(self) -> Message:
        """Opens the case's session. The first worker's session initializes the variables."""
        with self._graph.as_default():
            self._session = self.training_session()
        return {}

    @request
    def run(self, seconds: float, steps: int, late_s: Sequence[float], around: int) -> Message:
        """Runs steps for `seconds`, but at least `steps` steps; begins after this worker's
        `late_s`.

        `around` additional steps before and after are not counted, because other workers may not
        run yet or any more.
        """
        time.sleep(late_s[self._index])
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

    def _made(self, case: StepCase) -> Any:
        """Builds a step from tables: reads variables, computes, and adds gradients."""
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
            # A value that no graph optimizer can compute ahead.
            total = tf.cast(tf.timestamp(), tf.float32) * 1e-20
        if case.pull and variables:
            reads = []
            for variable in variables:
                with tf.device(variable.device):
                    reads.append(variable.read_value())
            with tf.device(self._device):
                # One element is enough: the whole tensor must arrive before it can be read.
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
                    # All gradients differ, or else TensorFlow would make and send one for all.
                    gradient = tf.fill(variable.shape, total + number * 1e-9)
                with tf.device(variable.device):
                    updates.append(variable.assign_add(gradient, read_value=False))
        with tf.device(self._device):
            # `total` is fetched, or else TensorFlow would prune its computation.
            return tf.group(*updates), total


_ANSWER_TIMEOUT_S = 180.0
_UNCOUNTED_STEPS = 2


@dataclass(frozen=True)
class Measured:
    """Measurements of a running job over some seconds. Tasks are named "ps:0"."""

    seconds: float
    steps_per_s: float
    """Steps a second of all workers together."""
    step_ms: Mapping[str, float]
    """The median time of a step, by worker."""
    cpu_s: Mapping[str, float]
    steps: Mapping[str, int]
    """Steps by worker during which `cpu_s` and `received_bytes` were counted, with uncounted ones.
    """
    received_bytes: Mapping[str, int]
    """Bytes received over the task's link, including TCP headers; empty without a lab network."""
    machine_cpu_s: float
    """CPU seconds of all cores of this machine, including the kernel's work for the links."""


class LabJob(ClusterTasks):
    """A job in a lab, each task on its own host. It runs one case at a time."""

    def __init__(self, setting: Setting, ps: int, lab: Lab) -> None:
        hosts = {"ps": lab.hosts[:ps], "worker": lab.hosts[ps:]}
        cluster = LocalCluster({name: len(of_job) for name, of_job in hosts.items()}, hosts)
        # The job stands for one on several machines, which share no memory.
        setting = replace(setting, transport="tcp")
        super().__init__(cluster, setting, {"ps": ServerTask, "worker": LabJobWorker})
        self.has_network = lab.has_network
        """True if the links have the requested rate."""
        self.notes = lab.notes
        self._lab = lab
        self._workers = [f"worker:{index}" for index in range(len(hosts["worker"]))]
        self._files: dict[str, list[str]] = {}
        self._random = random.Random(0)

    def set_rate(self, bits_per_s: float) -> None:
        """Sets the rate of every link, from now on."""
        for index in range(len(self._lab.hosts)):
            self._lab.set(index, HostSettings(rate_bits_per_s=bits_per_s))

    @property
    def rate_bits_per_s(self) -> float | None:
        """Rate of each task's own link; None: as fast as this machine is."""
        return self._lab.settings.hosts[0].rate_bits_per_s if self.has_network else None

    def open(self, case: StepCase) -> None:
        """Makes the case's graph and sessions, with new variables."""
        files = self._train_files(case.model) if case.model else []
        step = dataclasses.asdict(case)
        self.ask_all(self._workers, "build", _ANSWER_TIMEOUT_S, case=step, train_files=files)
        for worker in self._workers:  # the first worker's session initializes the variables
            self.ask(worker, "open", _ANSWER_TIMEOUT_S)

    def close(self) -> None:
        """Ends the sessions of the case."""
        self.ask_all(self._workers, "close", _ANSWER_TIMEOUT_S)

    def measure(
        self, seconds: float, *, warm_up_s: float, starts: int = 1, least_steps: int = 10
    ) -> Measured:
        """Runs steps on all workers at the same time for about `seconds`.

        Workers that start simultaneously would stay in lockstep, and use one direction of a link at
        a time. In a real job they start at different times. So each worker starts with a random
        delay of up to one step, drawn again for each of `starts`.
        """
        warm_up = self._run(warm_up_s, least_steps // 2, 0.0, 0)
        step_s = statistics.fmean(statistics.median(r["step_s"]) for r in warm_up)
        cpu_before, busy_before = self._cpu_s(), _machine_busy_s()
        received_before, began = self._received_bytes(), time.perf_counter()
        around = _UNCOUNTED_STEPS if len(self._workers) > 1 else 0
        replies = [
            self._run(seconds / starts, -(-least_steps // starts), step_s, around)
            for _ in range(starts)
        ]
        lasted = time.perf_counter() - began
        cpu, received = self._cpu_s(), self._received_bytes()
        of_workers = dict(zip(self._workers, zip(*replies, strict=True), strict=True))
        took = {
            name: [s for r in of_one for s in r["step_s"]] for name, of_one in of_workers.items()
        }
        return Measured(
            seconds=lasted,
            steps_per_s=sum(len(each) / sum(each) for each in took.values()),
            step_ms={name: 1e3 * statistics.median(each) for name, each in took.items()},
            steps={name: sum(r["steps"] for r in of_one) for name, of_one in of_workers.items()},
            cpu_s={name: cpu[name] - before for name, before in cpu_before.items()},
            received_bytes={
                name: received[name] - before for name, before in received_before.items()
            },
            machine_cpu_s=_machine_busy_s() - busy_before,
        )

    def _run(self, seconds: float, steps: int, delay_s: float, around: int) -> list[Message]:
        """Runs all workers once. `delay_s`: the largest random delay of a start, if there are
        several.
        """
        late_s = [self._random.uniform(0.0, delay_s) if around else 0.0 for _ in self._workers]
        wanted = {"seconds": seconds, "steps": steps, "around": around, "late_s": late_s}
        return self.ask_all(self._workers, "run", _ANSWER_TIMEOUT_S + seconds, **wanted)

    def _cpu_s(self) -> dict[str, float]:
        times = {n: psutil.Process(each.pid).cpu_times() for n, each in self.processes.items()}
        return {name: float(each.user + each.system) for name, each in times.items()}

    def _received_bytes(self) -> dict[str, int]:
        counts = {
            name: self.cluster.host(task.job, task.index).received_bytes()
            for name, task in self.processes.items()
        }
        return {name: count for name, count in counts.items() if count is not None}

    def _train_files(self, model: str) -> list[str]:
        if model not in self._files:
            directory = self.cluster.directory / model
            directory.mkdir()
            files = examples.write(directory, len(self._workers), *MODELS[model].load())
            self._files[model] = [str(path) for path in files.train]
        return self._files[model]


def _machine_busy_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


@contextlib.contextmanager
def running(
    setting: Setting,
    workers: int,
    ps: int,
    watcher: Watcher,
    rate_bits_per_s: float | None = None,
) -> Iterator[LabJob]:
    """Starts the job's tasks, each on its own host of a lab, and ends them with the context.

    `rate_bits_per_s`: of each task's own link; None: as fast as this machine is.

    Raises:
        TensorwireError: a task failed, or did not start in time.
    """
    alike = LabSettings.alike(ps + workers, HostSettings(rate_bits_per_s=rate_bits_per_s))
    with Lab(alike) as lab, LabJob(setting, ps, lab) as job:
        job.wait_started(watcher)
        yield job
        job.cluster.check()
