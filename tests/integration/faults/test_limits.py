"""Machines that run out of something while a job trains on grpc++: disk, memory, descriptors; and
one whose clock is another."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tensorwire.bench.survival import Job, JobSettings
from tensorwire.lab import Host
from tensorwire.lab.hosts import LOOPBACK

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.newest,
    pytest.mark.timeout(240, method="thread", func_only=True),
]

AT_LAST_S = 120.0
A_YEAR_S = 365 * 86400

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None,
    reason="a small disk or another clock takes root and unshare",
)


@contextlib.contextmanager
def namespaced(kind: str, *arguments: str) -> Iterator[tuple[Host, subprocess.Popen[str]]]:
    """This machine, but for what `unshare` makes different; and a shell there."""
    shell = subprocess.Popen(
        ["unshare", *arguments, "sh"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with shell:
        try:
            pid = told(shell, "echo $$")
            if not pid:
                assert shell.stderr is not None
                pytest.skip(f"unshare: {shell.stderr.read().strip()}")
            yield Host(LOOPBACK.address, namespaces=(f"/proc/{pid}/ns/{kind}",)), shell
        finally:
            shell.kill()


def told(shell: subprocess.Popen[str], command: str) -> str:
    """What a command answers, in a line."""
    assert shell.stdin is not None and shell.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        shell.stdin.write(command + "\n")
        shell.stdin.flush()
    return shell.stdout.readline().strip()


@needs_namespaces
def test_a_disk_that_is_full_at_a_checkpoint_ends_the_training_with_its_reason(
    plugin: None, tmp_path: Path
) -> None:
    settings = JobSettings("grpc++", workers=1, save_every=20)
    with namespaced("mnt", "--mount") as (host, shell):
        mounted = told(shell, f"mount -t tmpfs -o size=16m none {tmp_path} && echo yes || echo no")
        if mounted != "yes":
            pytest.skip("no file system in memory can be mounted here")
        with Job(settings, tmp_path / "checkpoints", hosts=[host, host]) as job:
            job.go_on(50, AT_LAST_S)
            told(shell, f"cat /dev/zero 2>/dev/null >{tmp_path}/fill; echo full")
            failure = job.wait_failure(AT_LAST_S)
            assert "No space left on device" in failure, failure
            # Nothing that an earlier checkpoint had is lost.
            job.kill("worker:0")
            told(shell, f"rm {tmp_path}/fill; echo free")
            steps = job.told.steps
            job.restart("worker:0")
            job.go_on(20, AT_LAST_S)
            again = job.told.steps - steps - 20
            assert again < 100, "it began anew, and not from a checkpoint"


class MemoryGroup:
    """A control group for memory, version 1 or 2. Skips where none can be made."""

    def __init__(self) -> None:
        mounts = {Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes"}
        mounts[Path("/sys/fs/cgroup")] = "memory.max"
        self.path = Path()
        for mount, limit in mounts.items():
            path = mount / f"tensorwire-test-{uuid.uuid4().hex}"
            with contextlib.suppress(OSError):
                path.mkdir()
                if (path / limit).exists():
                    self.path, self._limit = path, path / limit
                    return
                path.rmdir()
        pytest.skip("no control group for memory can be made here")

    def __enter__(self) -> MemoryGroup:
        return self

    def __exit__(self, *exception: object) -> None:
        deadline = time.monotonic() + 20
        while self.path.exists():
            assert time.monotonic() < deadline
            with contextlib.suppress(OSError):  # the kernel has not done with its last process
                self.path.rmdir()
            time.sleep(0.05)

    def allow(self, more_bytes: int | None) -> None:
        """So much on top of what is used; None: as much as there is."""
        version_1 = self._limit.name == "memory.limit_in_bytes"
        used = self.path / ("memory.usage_in_bytes" if version_1 else "memory.current")
        limit = -1 if version_1 else "max"
        self._limit.write_text(
            str(limit if more_bytes is None else int(used.read_text()) + more_bytes)
        )


def test_a_worker_that_a_receive_takes_beyond_its_memory_is_killed_and_comes_back(
    plugin: None, tmp_path: Path
) -> None:
    """It is the kernel that ends it, as it does with a container."""
    settings = JobSettings("grpc++", elements=4_000_000)  # 32 MB, and as much for the answer
    with MemoryGroup() as group:
        hosts = [LOOPBACK, Host(LOOPBACK.address, cgroup=group.path), LOOPBACK]
        with Job(settings, tmp_path, hosts=hosts, later=["worker:0"]) as job:
            group.allow(30_000_000)
            job.begin("worker:0")
            assert job.task("worker:1").process.wait(AT_LAST_S) == -signal.SIGKILL
            group.allow(None)
            job.restart("worker:1")
            job.go_on(2, AT_LAST_S)


def test_a_ps_without_descriptors_serves_whom_it_knows_and_others_when_it_has_some(
    plugin: None, tmp_path: Path
) -> None:
    with Job(JobSettings("grpc++"), tmp_path) as job:
        job.go_on(50, AT_LAST_S)
        ps = psutil.Process(job.task("ps:0").pid)
        before = ps.rlimit(resource.RLIMIT_NOFILE)
        ps.rlimit(resource.RLIMIT_NOFILE, (ps.num_fds(), before[1]))
        job.go_on(20, AT_LAST_S)
        assert job.told.recoveries == []
        with job.changed:
            job.kill("worker:0")
            highest = job.told.highest
        ps.rlimit(resource.RLIMIT_NOFILE, (1, before[1]))  # none for those who come
        job.restart("worker:0")
        time.sleep(2)
        assert job.told.highest <= highest + 1
        ps.rlimit(resource.RLIMIT_NOFILE, before)
        job.go_on(20, AT_LAST_S)


@needs_namespaces
def test_steady_clocks_that_are_a_year_apart_make_no_difference(
    plugin: None, tmp_path: Path
) -> None:
    flags = ("--time", "--monotonic", str(A_YEAR_S), "--boottime", str(A_YEAR_S), "--fork")
    with (
        namespaced("time", *flags) as (host, _),
        Job(JobSettings("grpc++"), tmp_path, hosts=[host, LOOPBACK, LOOPBACK]) as job,
    ):
        own = Path("/proc/self/ns/time").stat()
        assert Path(f"/proc/{job.task('ps:0').pid}/ns/time").stat().st_ino != own.st_ino
        job.go_on(100, AT_LAST_S)
        assert job.told.recoveries == []
