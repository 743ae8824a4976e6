"""Machines that run out of disk, memory or descriptors while a job trains on grpc++, and machines
whose clock is changed or differs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.machine_faults import (
    ClockSet,
    FullDisk,
    LittleMemory,
    NoDescriptors,
    NotHere,
    namespace_of,
    shell_in,
)
from harness.survival import Job, JobSettings
from tensorwire.bench.lab.hosts import LOOPBACK

from .support import AT_LAST_S, go_on_undisturbed, nothing_leaks

pytestmark = [
    pytest.mark.timeout(240, method="thread", func_only=True),
]

A_YEAR_S = 365 * 86400
SETTINGS = JobSettings("grpc++")


@dataclass(frozen=True)
class Training:
    """A job on machines whose clock can be changed and whose disk can be filled."""

    job: Job
    clock: ClockSet
    disk: FullDisk | None
    note: str
    """Why the disk cannot be filled here; "" if it can."""


@pytest.fixture(scope="module")
def training(plugin: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    """A training job that ends, after all faults, with the result of an undisturbed one."""
    directory = tmp_path_factory.mktemp("checkpoints")
    with contextlib.ExitStack() as stack:
        clock = stack.enter_context(ClockSet(SETTINGS, directory))
        disk: FullDisk | None = None
        note = ""
        try:
            disk = stack.enter_context(FullDisk(clock.settings, directory))
        except NotHere as error:
            note = str(error)
        job = stack.enter_context((disk or clock).job())
        job.go_on(60, AT_LAST_S)
        yield Training(job, clock, disk, note)
        job.stop()


@pytest.mark.newest
def test_a_wall_clock_that_jumps_by_a_year_and_back_makes_no_difference(training: Training) -> None:
    job = training.job
    for off_s in (A_YEAR_S, -A_YEAR_S):
        # A task waits while the clock jumps, and a checkpoint is written afterwards.
        with job.in_the_middle_of_a_step():
            training.clock.set(off_s)
        go_on_undisturbed(job, 2 * job.settings.save_every)
        assert abs(job.told.wall_clock_s - time.time() - off_s) < A_YEAR_S / 2, "it was not set"


# The gRPC port of TensorFlow 2.15 never accepts connections again after it failed once.
@pytest.mark.newest
def test_a_ps_without_descriptors_serves_whom_it_knows_and_others_when_it_has_some(
    training: Training, tmp_path: Path
) -> None:
    job, fault = training.job, NoDescriptors(SETTINGS, tmp_path)
    with nothing_leaks(job, "ps:0", "worker:1"), fault:
        recoveries = len(job.told.recoveries)
        assert "Too many open files" in fault.begin(job)  # the checkpoint's
        # Until then training continued, and no task counted as lost.
        assert job.told.highest % job.settings.save_every in (0, job.settings.save_every - 1)
        assert len(job.told.recoveries) == recoveries
        highest = job.told.highest
        fault.end(job)
        job.reach(highest + 20, AT_LAST_S)


def test_a_disk_that_is_full_at_a_checkpoint_ends_the_training_with_its_reason(
    training: Training,
) -> None:
    job, fault = training.job, training.disk
    if fault is None:
        pytest.skip(training.note)
    with nothing_leaks(job, "ps:0", "worker:1"):
        assert "No space left on device" in fault.begin(job)
        # Nothing from before the last checkpoint is lost.
        steps, highest = job.told.steps, job.told.highest
        fault.end(job)
        job.reach(highest + 1, AT_LAST_S)
        again = (job.told.steps - steps) - (job.told.highest - highest)
        assert again <= job.settings.save_every, "it began anew, and not from a checkpoint"


@pytest.mark.newest
def test_a_worker_that_a_receive_takes_beyond_its_memory_is_killed_and_comes_back(
    plugin: None, tmp_path: Path
) -> None:
    """The kernel kills the worker, as it would kill a container."""
    with contextlib.ExitStack() as stack:
        fault = LittleMemory(SETTINGS, tmp_path)
        try:
            stack.enter_context(fault)
        except NotHere as error:
            pytest.skip(str(error))
        job = stack.enter_context(fault.job())
        fault.begin(job)
        fault.end(job)
        job.go_on(2, AT_LAST_S)
        job.stop()


@pytest.mark.newest
def test_steady_clocks_that_are_a_year_apart_make_no_difference(
    plugin: None, tmp_path: Path
) -> None:
    flags = ("--time", "--monotonic", str(A_YEAR_S), "--boottime", str(A_YEAR_S), "--fork")
    with contextlib.ExitStack() as stack:
        try:
            host = namespace_of(stack.enter_context(shell_in(*flags)), "time")
        except NotHere as error:
            pytest.skip(str(error))
        job = stack.enter_context(Job(SETTINGS, tmp_path, hosts=[host, LOOPBACK, LOOPBACK]))
        own = Path("/proc/self/ns/time").stat()
        assert Path(f"/proc/{job.task('ps:0').pid}/ns/time").stat().st_ino != own.st_ino
        go_on_undisturbed(job, 100)
