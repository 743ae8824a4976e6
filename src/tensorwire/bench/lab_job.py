"""A ps/worker job as it is configured: so many tasks, each on a lab host with a link of its own.

What a planner predicts from one worker and one ps is measured here as it really runs. A case is
one of the models of `bench train`, or made of tables: a step reads each of them, computes, and adds
a gradient to each.
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

from tensorwire.bench.models import MODELS, examples, wide_deep
from tensorwire.bench.server_task import ServerTask
from tensorwire.lab import HostSettings, Lab, LabSettings, LocalCluster, TaskProcess
from tensorwire.lab.channel import Message
from tensorwire.measure.contenders import rewritten_name
from tensorwire.measure.hosted_task import request
from tensorwire.measure.task_processes import Watcher, answer, ask, send, start_task, wait_started
from tensorwire.placement.plan import STRATEGIES, Variable

_SIDE = 256
_START_DEADLINE_S = 60


@dataclass(frozen=True)
class TableVariable:
    """A variable of float32, or a part of one, and its ps."""

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


_ANSWER_TIMEOUT_S = 180.0
_ITEM_BYTES = 4
_UNCOUNTED_STEPS = 2


@dataclass(frozen=True)
class LabJobSettings:
    """The number of tasks, their links and their protocol."""

    workers: int
    ps: int
    protocol: str
    rate_bits_per_s: float | None = None
    """Rate of each task's own link; None: as fast as this machine is."""
    rewrites: tuple[str, ...] = ()
    """Rewrites of the job's graphs, of measure.contenders."""

    @property
    def side(self) -> str:
        """The protocol with its rewrites: "grpc++ exact"."""
        return rewritten_name(self.protocol, self.rewrites)


@dataclass(frozen=True)
class Measured:
    """Some seconds of a running job; of tasks by name, "ps:0"."""

    seconds: float
    steps_per_s: float
    """Steps a second of all workers together."""
    starts_steps_per_s: Sequence[float]
    """The same for each start."""
    step_ms: Mapping[str, float]
    """The median of each worker."""
    cpu_s: Mapping[str, float]
    steps: Mapping[str, int]
    """Steps that took this CPU time and received these bytes; the rate covers most of them."""
    received_bytes: Mapping[str, int]
    """Over the task's link, with TCP's headers; empty without a network of the lab's own."""
    machine_cpu_s: float
    """CPU seconds of all cores of this machine, the kernel's work for the links included."""


def placed(variables: Sequence[Variable], placement: str, ps: int) -> tuple[TableVariable, ...]:
    """The tables that a strategy of `tensorwire place` makes of variables of float32."""
    plan = STRATEGIES[placement](variables, ps, None)
    return tuple(
        TableVariable(max(1, round(each.bytes / _ITEM_BYTES)), each.task) for each in plan.parts
    )


class LabJob:
    """Tasks that have started; it takes one case after another."""

    def __init__(
        self,
        settings: LabJobSettings,
        lab: Lab,
        cluster: LocalCluster,
        tasks: Sequence[TaskProcess],
        tensorflow: str,
    ) -> None:
        self.settings = settings
        self.tensorflow = tensorflow
        self._lab = lab
        self.has_network = lab.has_network
        """True if the links have the rate that was asked for."""
        self.notes = lab.notes
        self._cluster = cluster
        self._tasks = tasks
        self._workers = [task for task in tasks if task.job == "worker"]
        self._files: dict[str, list[str]] = {}
        self._random = random.Random(0)

    def set_rate(self, bits_per_s: float) -> None:
        """Sets the rate of every link, from now on."""
        self.settings = replace(self.settings, rate_bits_per_s=bits_per_s)
        for index in range(len(self._lab.hosts)):
            self._lab.set(index, HostSettings(rate_bits_per_s=bits_per_s))

    def open(self, case: StepCase) -> None:
        """Makes the case's graph and sessions, in which its variables are new."""
        message: Message = {"do": "build", "case": dataclasses.asdict(case)}
        if case.model:
            message["train_files"] = self._train_files(case.model)
        for task in self._workers:
            send(self._cluster, task, message)
        for task in self._workers:
            answer(self._cluster, task, _ANSWER_TIMEOUT_S)
        for task in self._workers:  # the first one's initialises the variables
            ask(self._cluster, task, {"do": "open"}, _ANSWER_TIMEOUT_S)

    def close(self) -> None:
        """Ends the sessions of the case."""
        for task in self._workers:
            ask(self._cluster, task, {"do": "close"}, _ANSWER_TIMEOUT_S)

    def measure(
        self, seconds: float, *, warm_up_s: float, starts: int = 1, least_steps: int = 10
    ) -> Measured:
        """All workers take steps at the same time, for so long.

        Workers that begin a step together go on so, and use one direction of a link after the
        other. In a job they come one by one, so each begins at a random moment of a step, again at
        each of `starts`.
        """
        warm_up = self._run(warm_up_s, least_steps // 2, 0.0, 0)
        step_s = statistics.fmean(statistics.median(r["step_s"]) for r in warm_up.values())
        cpu_before, busy_before = self._cpu_s(), _machine_busy_s()
        received_before, began = self._received_bytes(), time.perf_counter()
        around = _UNCOUNTED_STEPS if len(self._workers) > 1 else 0
        replies = [
            self._run(seconds / starts, -(-least_steps // starts), step_s, around)
            for _ in range(starts)
        ]
        lasted = time.perf_counter() - began
        cpu, received = self._cpu_s(), self._received_bytes()
        took = {
            task.name: [s for r in replies for s in r[task.name]["step_s"]]
            for task in self._workers
        }
        return Measured(
            seconds=lasted,
            steps_per_s=sum(len(each) / sum(each) for each in took.values()),
            starts_steps_per_s=[
                sum(len(r["step_s"]) / sum(r["step_s"]) for r in each.values()) for each in replies
            ],
            step_ms={name: 1e3 * statistics.median(each) for name, each in took.items()},
            steps={
                task.name: sum(int(r[task.name]["steps"]) for r in replies)
                for task in self._workers
            },
            cpu_s={name: cpu[name] - before for name, before in cpu_before.items()},
            received_bytes={
                name: received[name] - before for name, before in received_before.items()
            },
            machine_cpu_s=_machine_busy_s() - busy_before,
        )

    def _run(self, seconds: float, steps: int, delay_s: float, around: int) -> dict[str, Message]:
        """`delay_s`: the most that a worker begins later, in jobs of several."""
        for task in self._workers:
            late_s = self._random.uniform(0.0, delay_s) if around else 0.0
            message: Message = {
                "do": "run",
                "seconds": seconds,
                "steps": steps,
                "delay_s": late_s,
                "around": around,
            }
            send(self._cluster, task, message)
        return {
            task.name: answer(self._cluster, task, _ANSWER_TIMEOUT_S + seconds)
            for task in self._workers
        }

    def _cpu_s(self) -> dict[str, float]:
        times = {task.name: psutil.Process(task.pid).cpu_times() for task in self._tasks}
        return {name: float(each.user + each.system) for name, each in times.items()}

    def _received_bytes(self) -> dict[str, int]:
        counts = {
            task.name: self._cluster.host(task.job, task.index).received_bytes()
            for task in self._tasks
        }
        return {name: count for name, count in counts.items() if count is not None}

    def _train_files(self, model: str) -> list[str]:
        if model not in self._files:
            directory = self._cluster.directory / model
            directory.mkdir()
            files = examples.write(directory, self.settings.workers, *MODELS[model].load())
            self._files[model] = [str(path) for path in files.train]
        return self._files[model]


def _machine_busy_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


@contextlib.contextmanager
def running(settings: LabJobSettings, watcher: Watcher) -> Iterator[LabJob]:
    """The job's tasks, each on a lab host of its own, while the context lasts.

    Raises:
        TensorwireError: a task failed, or did not come up in time.
    """
    counts = {"ps": settings.ps, "worker": settings.workers}
    host = HostSettings(rate_bits_per_s=settings.rate_bits_per_s)
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(Lab(LabSettings.alike(sum(counts.values()), host)))
        hosts = {"ps": lab.hosts[: settings.ps], "worker": lab.hosts[settings.ps :]}
        cluster = stack.enter_context(LocalCluster(counts, hosts))
        tasks = [
            _start(cluster, settings, name, index)
            for name, count in counts.items()
            for index in range(count)
        ]
        for task in tasks:
            tensorflow = wait_started(cluster, task, watcher)
        yield LabJob(settings, lab, cluster, tasks, tensorflow)
        cluster.check()


def _start(cluster: LocalCluster, settings: LabJobSettings, name: str, index: int) -> TaskProcess:
    return start_task(
        cluster,
        name,
        index,
        LabJobWorker if name == "worker" else ServerTask,
        {
            "spec": cluster.spec,
            "job": name,
            "index": index,
            "protocol": settings.protocol,
            "rewrites": settings.rewrites,
        },
        # Of one machine as the job is of several.
        {"CUDA_VISIBLE_DEVICES": "-1", "TENSORWIRE_TRANSPORT": "tcp"},
    )
