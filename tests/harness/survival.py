"""A job that trains while it is disturbed, and checks of its results.

The results of its steps show whether a step was lost, repeated or done with other data
(`survival_task`). Each result is compared with that of an undisturbed job.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import psutil

import processes
from harness.relaying import RelayedLab
from harness.survival_task import digest, undisturbed
from tensorwire.bench.lab import Host, HostSettings, Lab, LabSettings, LocalCluster, TaskProcess
from tensorwire.errors import TensorwireError
from tensorwire.owning_context import OwningContext

START_TIMEOUT_S = 120.0
_MEMORY_FILE = "/memfd:tensorwire"
_TASK = Path(__file__).with_name("survival_task.py")


@dataclass(frozen=True)
class JobSettings:
    """The settings of a training job. Each ps has a variable of `elements` numbers of 8 bytes."""

    protocol: str
    ps: int = 1
    workers: int = 2
    elements: int = 5000
    save_every: int = 50
    """Steps between two checkpoints."""
    step_timeout_ms: int = 0
    """The user's timeout of a step; 0: none."""
    pause_ms: int = 0
    """The pause between steps, so that compared jobs do not compete for cores."""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def tasks(self) -> list[tuple[str, int]]:
        """All tasks; the chief is last, because it trains as soon as it can."""
        return [
            *(("ps", index) for index in range(self.ps)),
            *(("worker", index) for index in reversed(range(self.workers))),
        ]


@dataclass(frozen=True)
class Holdings:
    """System resources that a process holds."""

    descriptors: int
    threads: int
    resident_mb: float
    """Of a peer's memory that it has mapped, its share. MB are 10^6 bytes."""

    @staticmethod
    def of(pid: int) -> Holdings:
        process = psutil.Process(pid)
        with process.oneshot():
            # Else a tensor that TensorFlow keeps on one task would be kept by all that read it.
            of_others = sum(
                each.rss - each.pss
                for each in process.memory_maps(grouped=False)
                if each.path.startswith(_MEMORY_FILE)
            )
            resident = process.memory_info().rss - of_others
            return Holdings(process.num_fds(), process.num_threads(), resident / 1e6)


@dataclass
class Told:
    """The reports of the chiefs so far."""

    step: int = 0
    """The last reported step."""
    highest: int = 0
    steps: int = 0
    """The number of all steps; more than `highest` if some were repeated from a checkpoint."""
    reached_at: dict[int, float] = field(default_factory=dict)
    """The time of the first completion of each step, by time.monotonic()."""
    done_at: list[float] = field(default_factory=list)
    """The completion times of all steps, including repeated ones."""
    recoveries: list[str] = field(default_factory=list)
    """The errors because of which sessions were restarted."""
    failure: str = ""
    """Why the chief gave up: the error's class and first line."""
    wrong: str = ""
    """The first step whose results differ from those of an undisturbed job."""
    wall_clock_s: float = 0.0
    """The chief's wall clock after the last step, in seconds since 1970."""
    stopped: bool = False
    digests: list[str] = field(default_factory=list)
    """Digests of each ps's variable when the training was stopped."""


class Job(OwningContext):
    """The tasks of a job and the reports of its chief. A context manager that removes everything.

    Every wait has a timeout, after which it raises TensorwireError with the chief's errors.
    """

    def __init__(
        self,
        settings: JobSettings,
        directory: Path,
        *,
        lab: Lab | None = None,
        hosts: Sequence[Host] = (),
        later: Sequence[str] = (),
    ) -> None:
        """Starts nothing yet.

        Args:
            directory: the folder for checkpoints. lab, hosts: one of them gives a host for each
            task, in the order of `JobSettings.tasks`; without both, all run on this machine.
            later: tasks that the test starts later.
        """
        self.settings = settings
        self._later = later
        self.lab = lab
        self.told = Told()
        self.tensorflow: str | None = None
        """The version of TensorFlow; set when a task serves."""
        self.changed = threading.Condition()
        self._serving: set[TaskProcess] = set()
        self._ended: set[TaskProcess] = set()
        self._directory = directory
        self._tasks: dict[str, TaskProcess] = {}
        self._readers: list[threading.Thread] = []
        self._expected: list[list[int]] = []
        self._reference = self._undisturbed()
        places = list(hosts or (lab.hosts if lab is not None and lab.has_network else ()))
        self._host_of = {
            f"{job}:{index}": number for number, (job, index) in enumerate(settings.tasks)
        }
        jobs: dict[str, list[Host]] = {}
        if places:
            for job, count in (("ps", settings.ps), ("worker", settings.workers)):
                jobs[job] = [places[self._host_of[f"{job}:{index}"]] for index in range(count)]
        self.cluster = LocalCluster({"ps": settings.ps, "worker": settings.workers}, jobs)

    def _open(self, held: contextlib.ExitStack) -> None:
        held.callback(self._join_readers)
        held.enter_context(self.cluster)
        held.callback(self._thaw)
        names = [f"{job}:{index}" for job, index in self.settings.tasks]
        for name in (at_once := [name for name in names if name not in self._later]):
            self.begin(name)
        for name in at_once:
            self.ready(name)

    def _thaw(self) -> None:
        for task in self._tasks.values():
            task.signal(signal.SIGCONT)

    def _join_readers(self) -> None:
        for reader in self._readers:
            reader.join(10)

    def begin(self, name: str, environment: Mapping[str, str] | None = None) -> TaskProcess:
        """Starts or restarts a task without waiting for it."""
        job, _, index = name.partition(":")
        task = self.cluster.start(
            job,
            int(index),
            [sys.executable, str(_TASK)],
            env={
                "TF_ENABLE_ONEDNN_OPTS": "0",
                "TF_NUM_INTRAOP_THREADS": "2",
                "CUDA_VISIBLE_DEVICES": "-1",
                **self.settings.environment,
                **(environment or {}),
            },
            channel=True,
        )
        task.channel.send(
            {
                "spec": self.cluster.spec,
                "job": job,
                "index": int(index),
                "protocol": self.settings.protocol,
                "elements": self.settings.elements,
                "directory": str(self._directory),
                "save_every": self.settings.save_every,
                "step_timeout_ms": self.settings.step_timeout_ms,
                "pause_ms": self.settings.pause_ms,
            }
        )
        self._tasks[name] = task
        if name == "worker:0":
            self.told.stopped, self.told.failure = False, ""
        self._readers.append(threading.Thread(target=self._listen, args=(task,), daemon=True))
        self._readers[-1].start()
        return task

    def ready(self, name: str) -> None:
        """Waits until the task's server runs."""
        task = self._tasks[name]
        with self.changed:
            known = (self._serving, self._ended)
            self.changed.wait_for(lambda: any(task in each for each in known), START_TIMEOUT_S)
            if task not in self._serving:
                raise self.cluster.error_of(task)

    def _listen(self, task: TaskProcess) -> None:
        message: Mapping[str, object] | None = {}
        while message is not None:
            message = None
            with contextlib.suppress(TensorwireError, OSError, ValueError):  # it has ended
                while not task.channel.wait(0.5):
                    pass
                message = task.channel.receive(10)
            with self.changed:
                if message is None:
                    self._ended.add(task)
                else:
                    self._take(task, message)
                self.changed.notify_all()

    def _take(self, task: TaskProcess, message: Mapping[str, object]) -> None:
        told = self.told
        if "tensorflow" in message:
            self._serving.add(task)
            self.tensorflow = str(message["tensorflow"])
        elif "recovering" in message:
            told.recoveries.append(str(message["recovering"]))
        elif "failed" in message:
            told.failure = f"{message['failed']}: {message['says']}"
        elif "stopped" in message:
            told.digests = cast("list[str]", message["digests"])
            told.stopped = True
        else:
            step, now = int(str(message["step"])), time.monotonic()
            told.step = step
            told.wall_clock_s = float(str(message["wall_clock_s"]))
            told.done_at.append(now)
            if step > told.highest:
                told.highest = step
                told.reached_at[step] = now
            told.steps += 1
            while len(self._expected) < step:
                self._expected.append([int(value.sum()) for value in next(self._reference)])
            if message["sums"] != self._expected[step - 1] and not told.wrong:
                told.wrong = f"after step {step}: {message['sums']}"

    def _undisturbed(self) -> Iterator[list[npt.NDArray[np.int64]]]:
        settings = self.settings
        return undisturbed(settings.ps, settings.workers, settings.elements)

    def task(self, name: str) -> TaskProcess:
        return self._tasks[name]

    def names(self) -> list[str]:
        return list(self._tasks)

    def reach(self, step: int, timeout_s: float) -> float:
        """Waits until step `step` was done, and returns when, by the steady clock.

        Raises:
            TensorwireError: the timeout passed, the chief gave up, or a result is wrong.
        """
        with self.changed:
            self.changed.wait_for(
                lambda: self.told.highest >= step or self.told.failure or self.told.wrong, timeout_s
            )
            self.check()
            if self.told.highest < step:
                raise TensorwireError(
                    f"no step after {self.told.highest} within {timeout_s:g} s; {self.words()}"
                )
            return self.told.reached_at[step]

    def reach_at_last(self, step: int, timeout_s: float) -> str:
        """Like `reach`, but restarts a chief that gives up, as its user would.

        Returns why it gave up; "" if it did not.
        """
        with self.changed:
            self.changed.wait_for(
                lambda: self.told.highest >= step or self.told.failure or self.told.wrong, timeout_s
            )
            failure = self.told.failure
        if failure:
            self.kill("worker:0")
            self.begin("worker:0")
        self.reach(step, timeout_s)
        return failure

    def go_on(self, steps: int, timeout_s: float) -> float:
        """Waits for `steps` steps beyond the highest so far; returns their completion time."""
        return self.reach(self.told.highest + steps, timeout_s)

    def half_way(self, steps: int) -> int:
        """The first step half-way between two checkpoints that is at least `steps` steps away."""
        every = self.settings.save_every
        first = self.told.highest + steps
        return first + (every // 2 - first) % every

    def check(self) -> None:
        """Raises TensorwireError if the chief gave up or a result is wrong."""
        if self.told.failure:
            raise TensorwireError(
                f"the chief gave up, on {self.settings.protocol}: {self.told.failure}"
            )
        if self.told.wrong:
            raise TensorwireError(f"not as in an undisturbed job: {self.told.wrong}")

    def words(self) -> str:
        """The errors that the chief reported, and the end of its log."""
        return f"recoveries: {self.told.recoveries}; {self._tasks['worker:0'].tail(25)}"

    def wait_failure(self, timeout_s: float) -> str:
        """Waits until the chief gives up, and returns why."""
        with self.changed:
            if not self.changed.wait_for(lambda: self.told.failure, timeout_s):
                raise TensorwireError(f"the chief did not fail within {timeout_s:g} s")
            return self.told.failure

    def stop(self, timeout_s: float = 60.0) -> None:
        """Ends the training with a last checkpoint; the tasks keep running.

        Raises:
            TensorwireError: it did not end in time, or its variables differ from an undisturbed
            job's.
        """
        self._tasks["worker:0"].channel.send({"do": "stop"})
        with self.changed:
            self.changed.wait_for(lambda: self.told.stopped or self.told.failure, timeout_s)
            self.check()
            if not self.told.stopped:
                raise TensorwireError(f"the chief did not stop in {timeout_s:g} s; {self.words()}")
        step = self.told.step
        values = next(itertools.islice(self._undisturbed(), step - 1, None))
        if self.told.digests != [digest(value) for value in values]:
            raise TensorwireError(f"after step {step} the variables are not an undisturbed job's")

    def kill(self, name: str) -> None:
        self._tasks[name].stop(signal.SIGKILL)

    def restart(self, name: str) -> None:
        """Restarts a killed task, and waits until it serves."""
        self.begin(name)
        self.ready(name)

    def freeze(self, name: str) -> None:
        processes.freeze(self._tasks[name])

    def thaw(self, name: str) -> None:
        self._tasks[name].signal(signal.SIGCONT)

    @contextlib.contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """Within the context, the task is stopped."""
        self.freeze(name)
        try:
            yield
        finally:
            self.thaw(name)

    @contextlib.contextmanager
    def in_the_middle_of_a_step(self, timeout_s: float = 30.0) -> Iterator[None]:
        """Within the context, a step has begun and cannot end: the last worker is stopped."""
        with self.frozen(f"worker:{self.settings.workers - 1}"):
            for seen in itertools.count():
                before = self.told.steps
                time.sleep(0.2)
                if self.told.steps == before:
                    break
                if seen > timeout_s / 0.2:
                    raise TensorwireError("steps end without one of the workers")
            yield

    @contextlib.contextmanager
    def link(self, name: str, settings: HostSettings) -> Iterator[None]:
        """Within the context, the task's host has the link `settings`; afterwards a normal link."""
        self.set_link(name, settings)
        try:
            yield
        finally:
            self.set_link(name, HostSettings())

    def set_link(self, name: str, settings: HostSettings) -> None:
        """Changes the link of the task's host."""
        assert self.lab is not None
        self.lab.set(self._host_of[name], settings)

    def holdings(self, *names: str) -> dict[str, Holdings]:
        """The current holdings of the named tasks, or of all running tasks."""
        return {
            name: Holdings.of(self._tasks[name].pid)
            for name in names or self._tasks
            if self._tasks[name].poll() is None
        }


def lab_for(settings: JobSettings, *, relayed: bool = False) -> Lab:
    """A lab with a host for each task."""
    alike = LabSettings.alike(len(settings.tasks), HostSettings())
    return RelayedLab(alike) if relayed else Lab(alike)
