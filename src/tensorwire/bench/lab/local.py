"""A cluster whose tasks are processes of this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol

from tensorwire.bench.lab import cleanup, cleanup_process
from tensorwire.bench.lab.channel import Channel
from tensorwire.bench.lab.cleanup import CleanupProcess
from tensorwire.bench.lab.hosts import LOOPBACK, Host
from tensorwire.bench.lab.ports import PortLease
from tensorwire.errors import TensorwireError
from tensorwire.owning_context import OwningContext

_LOGGER = logging.getLogger(__name__)
_POLL_S = 0.05
_TERMINATION_GRACE_S = 3.0
_TAIL_LINES = 15
_TAIL_BYTES = 16384


Stream = int | IO[bytes]
"""A descriptor, a file, or what `subprocess` defines: PIPE, DEVNULL."""


class Process(Protocol):
    """What a LocalCluster needs of a `subprocess.Popen`."""

    pid: int
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


def start_process(
    argv: Sequence[str],
    *,
    stdin: Stream,
    stdout: Stream,
    stderr: Stream,
    env: Mapping[str, str],
    cwd: Path | None,
) -> Process:
    """Starts a process in its own session. Tests replace this function."""
    return subprocess.Popen(
        argv, stdin=stdin, stdout=stdout, stderr=stderr, env=env, cwd=cwd, start_new_session=True
    )


def _exit_words(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    with contextlib.suppress(ValueError):
        return f"signal {signal.Signals(-code).name}"
    return f"signal {-code}"


@dataclass(eq=False)
class TaskProcess:
    """One task of a LocalCluster: a process, its log, and the address that it should serve.

    Made by `LocalCluster.start`.
    """

    job: str
    index: int
    address: str
    log: Path
    process: Process
    _channel: Channel | None = None
    _stopped_on_purpose: bool = False

    @property
    def name(self) -> str:
        """The task's name in TensorFlow's form: "worker:0"."""
        return f"{self.job}:{self.index}"

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def channel(self) -> Channel:
        """The task's channel for JSON messages; only if it was started with `channel=True`."""
        if self._channel is None:
            raise RuntimeError(f"{self.name} was started without a channel")
        return self._channel

    def poll(self) -> int | None:
        """The exit status, negative for a signal's number, or None while the task runs."""
        return self.process.poll()

    def has_failed(self) -> bool:
        """True if the task ended with an error, and not because of `stop`."""
        return not self._stopped_on_purpose and self.poll() not in (None, 0)

    def tail(self, lines: int = _TAIL_LINES) -> str:
        """The last lines of the task's log that are not empty."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])

    def stop(self, signal_number: int = signal.SIGKILL, timeout_s: float = 10.0) -> None:
        """Ends the task and its process group, and waits until it has ended.

        It then does not count as failed. The same job and index may be started again.

        Raises:
            TensorwireError: the task did not end within `timeout_s` seconds.
        """
        self._stopped_on_purpose = True
        self.signal(signal_number)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TensorwireError(
                f"{self.name} (process {self.pid}) is still running {timeout_s:g} s after "
                f"{signal.Signals(signal_number).name}"
            ) from None

    def signal(self, signal_number: int) -> None:
        """Sends a signal to the task's process group, unless the task has ended."""
        # `poll` reaps an ended process; after that, its id may belong to another process.
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal_number)


class LocalCluster(OwningContext):
    """Tasks of named jobs, each a process in its own session, on 127.0.0.1 or on a host of a lab.

    A context manager. On exit it ends every process that was started in it, including children of
    tasks. If this process is killed, a cleanup process does the same. Logs are in a temporary
    directory. It is removed at the end, unless an error names a log in it or the block raised an
    unexpected exception.

    Every wait has a timeout.
    """

    def __init__(
        self,
        jobs: Mapping[str, int],
        hosts: Mapping[str, Sequence[Host]] | None = None,
        *,
        may_fail: bool = False,
    ) -> None:
        """Picks an address for each task.

        Args:
            jobs: the number of tasks of each job, {"ps": 1, "worker": 2}.
            hosts: the hosts of a job, used in turn by its tasks; other jobs run on this machine.
            may_fail: True if failed tasks are expected; then their logs are not kept.

        Raises:
            TensorwireError: this machine does not have enough free ports.
        """
        self._hosts = {job: (hosts or {}).get(job, [LOOPBACK]) for job in jobs}
        self._may_fail = may_fail
        self._lease = PortLease()
        try:
            self.spec: dict[str, list[str]] = {
                job: [self._address(job, i) for i in range(count)] for job, count in jobs.items()
            }
        except BaseException:
            self._lease.release()
            raise
        self._token = uuid.uuid4().hex
        self._tasks: list[TaskProcess] = []
        self._directory: Path | None = None
        self._claim: cleanup.Claim | None = None

    def _open(self, held: contextlib.ExitStack) -> None:
        parent = Path(tempfile.gettempdir())
        cleanup.sweep(parent)
        held.callback(self._lease.release)
        self._directory = parent / f"{cleanup.PREFIX}{self._token}"
        # Started first, so that it removes the directory even if the next lines are interrupted.
        guard = CleanupProcess(token=self._token, directory=self._directory)
        held.callback(guard.dismiss)
        held.push(self._close)
        self._directory.mkdir(0o700)
        self._claim = cleanup.Claim(self._directory, self._token)
        self.temporary.mkdir()

    def _close(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Read before the tasks are ended, because tasks that are ended here have not failed.
        keep_logs = bool(self.failed()) and not self._may_fail
        if isinstance(exception, TensorwireError):
            keep_logs = str(self.directory) in str(exception)
        elif isinstance(exception, Exception):
            keep_logs = True
        self._end_tasks()
        shutil.rmtree(self.temporary, ignore_errors=True)
        if self._claim is not None:
            self._claim.release()
        if keep_logs and self._tasks:
            if str(self.directory) not in str(exception):
                _LOGGER.warning("the tasks' logs are in %s", self.directory)
        else:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _address(self, job: str, index: int) -> str:
        host = self.host(job, index)
        return f"{host.address}:{self._lease.take() if host.port is None else host.port}"

    def host(self, job: str, index: int) -> Host:
        """The host of a task."""
        hosts = self._hosts[job]
        return hosts[index % len(hosts)]

    @property
    def is_on_this_machine(self) -> bool:
        """True if every task has this machine's files."""
        return all(host.is_this_machine for hosts in self._hosts.values() for host in hosts)

    @property
    def directory(self) -> Path:
        """The folder of the logs. Tasks may put files there; they are removed with the cluster."""
        if self._directory is None:
            raise RuntimeError("LocalCluster is a context manager: use it in a with statement")
        return self._directory

    @property
    def temporary(self) -> Path:
        """The folder for temporary files of the tasks, removed with the cluster."""
        return self.directory / "tmp"

    def start(
        self,
        job: str,
        index: int,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        stdout: Path | None = None,
        *,
        channel: bool = False,
        stream: int | None = None,
        cwd: Path | None = None,
    ) -> TaskProcess:
        """Starts a task.

        Args:
            job, index: the task of `spec`.
            argv: the command line, the program first.
            env: variables on top of this process's own. TensorFlow logs only its errors unless
                TF_CPP_MIN_LOG_LEVEL is set here or in this process.
            stdout: a file for the standard output; None: the log, which always has the standard
                error.
            channel: connect standard input and output to `Task.channel`.
            stream: a descriptor to use as standard input and output, such as a connection to
                another process.
            cwd: the working directory; None: that of this process.

        Raises:
            TensorwireError: the program cannot be started.
        """
        if channel + (stdout is not None) + (stream is not None) > 1:
            raise ValueError("a task has one standard output")
        address = self.spec[job][index]
        if any((t.job, t.index) == (job, index) and t.poll() is None for t in self._tasks):
            raise ValueError(f"{job}:{index} is running")
        log = self._new_log(job, index)
        with contextlib.ExitStack() as files:
            log_file: IO[bytes] = files.enter_context(log.open("wb"))
            output: Stream = log_file
            if channel:
                output = subprocess.PIPE
            elif stream is not None:
                output = stream
            elif stdout is not None:
                output = files.enter_context(stdout.open("wb"))
            try:
                process = start_process(
                    self.host(job, index).command(argv),
                    stdin=output if channel or stream is not None else subprocess.DEVNULL,
                    stdout=output,
                    stderr=log_file,
                    env=self._environment(env or {}),
                    cwd=cwd,
                )
            except OSError as error:
                raise TensorwireError(f"cannot start {job}:{index}: {error}") from error
        task = TaskProcess(
            job,
            index,
            address,
            log,
            process,
            Channel(process.stdin, process.stdout, f"{job}:{index}") if channel else None,
        )
        self._tasks.append(task)
        return task

    def _new_log(self, job: str, index: int) -> Path:
        attempts = sum((task.job, task.index) == (job, index) for task in self._tasks)
        suffix = f".{attempts}" if attempts else ""
        return self.directory / f"{job}-{index}{suffix}.log"

    def _environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        addresses = [host.address for hosts in self._hosts.values() for host in hosts]
        environment = {
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "PYTHONUNBUFFERED": "1",  # keeps the last lines of a killed task in its log
            # gRPC uses http_proxy even for addresses of this machine.
            "no_grpc_proxy": ",".join(["localhost", LOOPBACK.address, *addresses]),
            **os.environ,
            # TensorFlow leaves temporary files behind, especially if it is killed.
            "TMPDIR": str(self.temporary),
            **extra,
        }
        outer = os.environ.get(cleanup_process.TOKEN_VARIABLE)  # a cluster within a task of another
        environment[cleanup_process.TOKEN_VARIABLE] = (
            f"{outer}:{self._token}" if outer else self._token
        )
        return environment

    @property
    def tasks(self) -> tuple[TaskProcess, ...]:
        """Every task that was started, in that order."""
        return tuple(self._tasks)

    def failed(self) -> list[TaskProcess]:
        """The tasks that ended with an error by themselves."""
        return [task for task in self._tasks if task.has_failed()]

    def check(self) -> None:
        """Raises TensorwireError if a task has failed; it names the task and its last log lines."""
        failed = self.failed()
        if failed:
            raise self.error_of(failed[0])

    def error_of(self, task: TaskProcess) -> TensorwireError:
        """The error for a task that unexpectedly ended or closed its channel."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            task.process.wait(1.0)
        code = task.poll()
        what = "does not answer" if code is None else f"ended with {_exit_words(code)}"
        tail = task.tail()
        words = f"; its log ({task.log}) ends:\n{tail}" if tail else f" (empty log: {task.log})"
        return TensorwireError(f"{task.name} {what}{words}")

    def wait(self, tasks: Iterable[TaskProcess], timeout_s: float) -> None:
        """Waits until all of `tasks` have ended successfully, and watches all tasks of the cluster.

        Raises:
            TensorwireError: a task of the cluster failed, or the time was up.
        """
        waited = list(tasks)
        deadline = time.monotonic() + timeout_s
        while True:
            self.check()
            unfinished = [task for task in waited if task.poll() is None]
            if not unfinished:
                self.check()
                return
            if time.monotonic() > deadline:
                names = ", ".join(task.name for task in unfinished)
                tail = unfinished[0].tail()
                raise TensorwireError(
                    f"{names} did not end within {timeout_s:g} s; "
                    f"the log of the first ({unfinished[0].log}) ends:\n{tail}"
                )
            time.sleep(_POLL_S)

    def _end_tasks(self) -> None:
        for task in self._tasks:
            task.signal(signal.SIGTERM)
        deadline = time.monotonic() + _TERMINATION_GRACE_S
        for task in self._tasks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                task.process.wait(max(0.0, deadline - time.monotonic()))
        for task in self._tasks:
            task.signal(signal.SIGKILL)
        cleanup_process.kill_all(self._token)  # children of tasks, in any group or session
        for task in self._tasks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                task.process.wait(_TERMINATION_GRACE_S)
            for stream in (task.process.stdin, task.process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
