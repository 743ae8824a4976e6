"""Faults of machines, not of tasks or links: a full disk, too little memory, no descriptors, a
changed wall clock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
import os
import resource
import signal
import struct
import subprocess
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import psutil

from harness.survival import Job, JobSettings
from tensorwire.bench.lab import Host, cleanup_process
from tensorwire.bench.lab.cleanup import CleanupProcess
from tensorwire.bench.lab.hosts import LOOPBACK
from tensorwire.errors import TensorwireError
from tensorwire.owning_context import OwningContext

_TIMEOUT_S = 120.0
_DAY_S = 86400
_YEAR_S = 365 * _DAY_S


class NotHere(TensorwireError):
    """This machine or this user cannot create the fault."""


class MachineFault(OwningContext, ABC):
    """A fault of machines, and a job that can have it.

    A context manager that removes everything at its end. Entering it raises NotHere if the fault
    cannot be created here.
    """

    name: ClassVar[str]
    settings: JobSettings
    """The settings of a job for this fault."""
    hosts: Sequence[Host] = ()
    """The hosts of the job's tasks; if empty, all run on this machine unchanged."""
    later: Sequence[str] = ()
    """Tasks that `begin` starts."""

    def __init__(self, settings: JobSettings, directory: Path) -> None:
        """Prepares a job with settings like these and its checkpoints in `directory`."""
        self.settings = settings
        self._directory = directory

    def job(self) -> Job:
        """A job for this fault, not started yet."""
        return Job(self.settings, self._directory, hosts=self.hosts, later=self.later)

    @abstractmethod
    def begin(self, job: Job) -> str:
        """Causes the fault, and returns when it has had its effect.

        Returns why the training ended; "" where it did not.
        """

    @abstractmethod
    def end(self, job: Job) -> None:
        """Removes the cause, and restarts the tasks that ended because of it."""


class FullDisk(MachineFault):
    """Checkpoints are on an in-memory file system of 16 MB that only the tasks see."""

    name = "disk full at a checkpoint"

    def _open(self, held: contextlib.ExitStack) -> None:
        self._directory.mkdir(exist_ok=True)
        self._shell = held.enter_context(shell_in("--mount"))
        self._told(f"mount -t tmpfs -o size=16m none {self._directory}")
        self.hosts = [namespace_of(self._shell, "mount", "mnt")] * len(self.settings.tasks)

    def begin(self, job: Job) -> str:
        self._told(f"cat /dev/zero 2>/dev/null >{self._directory}/fill || true")
        return job.wait_failure(_TIMEOUT_S)

    def end(self, job: Job) -> None:
        """Frees the disk and restarts the chief, as a user would."""
        job.kill("worker:0")
        self._told(f"rm {self._directory}/fill")
        job.begin("worker:0")

    def _told(self, command: str) -> None:
        if ask(self._shell, f"{command} && echo done || echo failed") != "done":
            raise NotHere(f"no small disk can be had here: {command!r} fails")


class LittleMemory(MachineFault):
    """A worker is in a control group whose memory limit is too low for the tensors of a step."""

    name = "memory limit reached by a receive"
    later = ("worker:0",)

    def __init__(self, settings: JobSettings, directory: Path) -> None:
        # 32 MB, and as much for the answer.
        super().__init__(dataclasses.replace(settings, elements=4_000_000), directory)

    def _open(self, held: contextlib.ExitStack) -> None:
        name = f"tensorwire-memory-{uuid.uuid4().hex}"
        files = {
            Path("/sys/fs/cgroup/memory"): ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            Path("/sys/fs/cgroup"): ("memory.max", "memory.current"),
        }
        # Started first; it also handles groups that do not exist yet.
        held.callback(CleanupProcess(cgroups=[mount / name for mount in files]).dismiss)
        for mount, (limit, used) in files.items():
            group = mount / name
            with contextlib.suppress(OSError):
                group.mkdir()
                held.callback(cleanup_process.remove_cgroup, group)
                if (group / limit).exists():
                    self._limit, self._used = group / limit, group / used
                    self.hosts = [LOOPBACK, Host(LOOPBACK.address, cgroup=group), LOOPBACK]
                    return
        raise NotHere("no control group for memory can be made here")

    def begin(self, job: Job) -> str:
        """Starts the training, in which the kernel kills the worker."""
        self._limit.write_text(str(int(self._used.read_text()) + 30_000_000))
        job.begin("worker:0")
        killed = job.task("worker:1").process
        try:
            status = killed.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise TensorwireError("the worker goes on beyond its memory limit") from None
        if status != -signal.SIGKILL:
            raise TensorwireError(f"the worker was not killed, but ended with {status}")
        job.kill("worker:1")  # expected, so that it does not count as a failure whose log is kept
        return ""

    def end(self, job: Job) -> None:
        """Raises the limit and restarts the worker, as a user would."""
        self._limit.write_text("-1" if self._limit.name.endswith("in_bytes") else "max")
        job.begin("worker:1")


class NoDescriptors(MachineFault):
    """The ps can open no further file or connection; open ones stay open."""

    name = "descriptors of the ps used up"

    def _open(self, held: contextlib.ExitStack) -> None:
        """Does nothing, because every process has such a limit."""

    def begin(self, job: Job) -> str:
        """Steps continue until a checkpoint; then the chief is restarted, and must wait."""
        ps = psutil.Process(job.task("ps:0").pid)
        self._before = ps.rlimit(resource.RLIMIT_NOFILE)
        ps.rlimit(resource.RLIMIT_NOFILE, (1, self._before[1]))
        failure = job.wait_failure(_TIMEOUT_S)
        job.kill("worker:0")
        job.restart("worker:0")
        time.sleep(2)
        return failure

    def end(self, job: Job) -> None:
        """Raises the limit, as a user would."""
        psutil.Process(job.task("ps:0").pid).rlimit(resource.RLIMIT_NOFILE, self._before)


class ClockSet(MachineFault):
    """The wall clock of all tasks jumps one year ahead, and then to one day before now."""

    name = "wall clock set"

    def __init__(self, settings: JobSettings, directory: Path) -> None:
        super().__init__(settings, directory)
        self._off: mmap.mmap | None = None

    def _open(self, held: contextlib.ExitStack) -> None:
        directory = Path(held.enter_context(tempfile.TemporaryDirectory()))
        library, off = directory / "jumping_clock.so", directory / "off"
        off.write_bytes(bytes(8))
        with off.open("r+b") as file:
            self._off = held.enter_context(mmap.mmap(file.fileno(), 8))
        source = Path(__file__).with_name("jumping_clock.cc")
        compiled = subprocess.run(
            ["g++", "-std=c++17", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"],
            check=False,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
        if compiled.returncode != 0:
            raise NotHere(f"no clock can be set here: {compiled.stderr}")
        environment: Mapping[str, str] = {
            **self.settings.environment,
            "LD_PRELOAD": str(library),
            "TENSORWIRE_CLOCK_FILE": str(off),
        }
        self.settings = dataclasses.replace(self.settings, environment=environment)

    def begin(self, job: Job) -> str:
        self.set(_YEAR_S)
        job.go_on(20, _TIMEOUT_S)
        return ""

    def end(self, job: Job) -> None:
        self.set(-_DAY_S)

    def set(self, off_s: int) -> None:
        """Sets the clock to `off_s` seconds from the true time."""
        assert self._off is not None
        self._off[:] = struct.pack("q", off_s)


MACHINE_FAULTS: tuple[type[MachineFault], ...] = (FullDisk, LittleMemory, NoDescriptors, ClockSet)


@contextlib.contextmanager
def shell_in(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A shell on this machine, with the namespaces of `unshare ARGUMENTS`.

    Raises NotHere if this user has no permission.
    """
    if os.geteuid() != 0:
        raise NotHere("unshare takes root")
    try:
        shell = subprocess.Popen(
            ["unshare", *arguments, "sh"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    except OSError as error:
        raise NotHere(f"unshare: {error.strerror}") from error
    with shell:
        try:
            if not ask(shell, "echo $$"):
                assert shell.stderr is not None
                raise NotHere(f"unshare: {shell.stderr.read().strip()}")
            yield shell
        finally:
            shell.kill()


def ask(shell: subprocess.Popen[str], command: str) -> str:
    """The answer to a command, one line."""
    assert shell.stdin is not None and shell.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        shell.stdin.write(command + "\n")
        shell.stdin.flush()
    return shell.stdout.readline().strip()


def namespace_of(shell: subprocess.Popen[str], kind: str, name: str | None = None) -> Host:
    """This machine as a host, with a namespace of that shell: its `kind` for nsenter(1), and its
    `name` in /proc, if that is another one."""
    path = f"/proc/{ask(shell, 'echo $$')}/ns/{name or kind}"
    return Host(LOOPBACK.address, namespaces=(f"--{kind}={path}",))
