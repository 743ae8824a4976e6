"""Tasks that die and come back, freeze, or are cut off, while a job trains on grpc++.

Every step's results are compared with an undisturbed job's by the job itself (`survival_task`), so
wherever a test goes on, nothing was lost, done twice or trained on other data.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorwire.bench.survival import Holdings, Job, JobSettings, lab_for
from tensorwire.lab import HostSettings

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240, method="thread", func_only=True)]

# No recovery takes as long on the busiest machine.
AT_LAST_S = 120.0
PEER_TIMEOUT_S = 2
# What a process leaves behind that is killed depends on what it had not read yet.
LOST = ("closed the connection", "Connection reset by peer")
CUT = HostSettings(is_cut=True)
# Thread pools start their threads when they are first needed, and gRPC connects to each of the two
# other tasks, and they to it, when it first has something to say. What grows with every fault is
# found by tests/soak.
MORE_THREADS = 16
MORE_DESCRIPTORS = 4


@contextlib.contextmanager
def training(directory: Path, environment: dict[str, str]) -> Iterator[Job]:
    settings = JobSettings("grpc++", environment=environment)
    with lab_for(settings) as lab, Job(settings, directory, lab=lab) as job:
        job.go_on(100, AT_LAST_S)
        yield job


@pytest.fixture(scope="module")
def patient(plugin: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A job that trains; nothing is lost while it is silent for less than 30 s."""
    with training(tmp_path_factory.mktemp("patient"), {}) as job:
        yield job


@pytest.fixture(scope="module")
def impatient(plugin: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """The same, but a peer counts as lost after PEER_TIMEOUT_S."""
    variables = {"TENSORWIRE_PEER_TIMEOUT_S": str(PEER_TIMEOUT_S)}
    with training(tmp_path_factory.mktemp("impatient"), variables) as job:
        yield job


@contextlib.contextmanager
def nothing_leaks(job: Job, *survivors: str) -> Iterator[None]:
    """Afterwards the survivors of what happens within hold no more than before."""
    before = job.holdings(*survivors)
    yield
    deadline = time.monotonic() + 60

    def more(name: str, now: Holdings) -> bool:
        was = before[name]
        more_descriptors = now.descriptors - was.descriptors
        return more_descriptors > MORE_DESCRIPTORS or now.threads - was.threads > MORE_THREADS

    while grown := [name for name, now in job.holdings(*survivors).items() if more(name, now)]:
        assert time.monotonic() < deadline, (grown, before, job.holdings(*survivors))
        time.sleep(0.1)


def go_on_undisturbed(job: Job) -> None:
    """Training goes on, and no session had to begin anew."""
    before = len(job.told.recoveries)
    job.go_on(20, AT_LAST_S)
    assert job.told.recoveries[before:] == []


def recover(job: Job, before: int, *says: str) -> None:
    """Training goes on, and of the errors on the way one says to whom what happened."""
    job.go_on(20, AT_LAST_S)
    said = job.told.recoveries[before:]
    assert any("grpc++: /job:" in each and any(what in each for what in says) for each in said), (
        said
    )


def needs_links(job: Job) -> None:
    assert job.lab is not None
    if not job.lab.has_network:
        pytest.skip(job.lab.notes[0])


def test_a_ps_killed_in_the_middle_of_a_step_and_started_again(patient: Job) -> None:
    before = len(patient.told.recoveries)
    with nothing_leaks(patient, "worker:0", "worker:1"):
        with patient.in_the_middle_of_a_step():
            patient.kill("ps:0")
        patient.restart("ps:0")
        recover(patient, before, *LOST)


def test_a_worker_killed_and_started_again(patient: Job) -> None:
    before = len(patient.told.recoveries)
    with nothing_leaks(patient, "ps:0", "worker:0"):
        patient.kill("worker:1")
        patient.restart("worker:1")
        recover(patient, before, *LOST)


def test_the_chief_killed_and_started_again(patient: Job) -> None:
    with nothing_leaks(patient, "ps:0", "worker:1"):
        with patient.in_the_middle_of_a_step():
            patient.kill("worker:0")
        patient.restart("worker:0")
        patient.go_on(20, AT_LAST_S)


def test_a_ps_frozen_for_a_moment_costs_only_that_moment(patient: Job) -> None:
    with patient.frozen("ps:0"):
        time.sleep(1)
    go_on_undisturbed(patient)


def test_a_link_cut_for_a_moment_costs_only_that_moment(patient: Job) -> None:
    needs_links(patient)
    with patient.link("ps:0", CUT):
        time.sleep(1)
    go_on_undisturbed(patient)


def test_a_ps_frozen_for_longer_than_a_peer_may_be_silent(impatient: Job) -> None:
    before = len(impatient.told.recoveries)
    with nothing_leaks(impatient):
        with impatient.frozen("ps:0"):
            wait_for_a_recovery(impatient, before)
        recover(impatient, before, f"has been silent for {PEER_TIMEOUT_S} s")


def test_a_link_cut_for_longer_than_a_peer_may_be_silent(impatient: Job) -> None:
    needs_links(impatient)
    before = len(impatient.told.recoveries)
    with nothing_leaks(impatient):
        with impatient.link("ps:0", CUT):
            wait_for_a_recovery(impatient, before)
        # Which of the two it is depends on whether something was being sent.
        recover(impatient, before, "has been silent for", "Connection timed out")


def test_a_connection_whose_other_end_went_without_a_word(impatient: Job) -> None:
    """The ps dies while its link is cut, so nobody is told."""
    needs_links(impatient)
    with nothing_leaks(impatient, "worker:0", "worker:1"):
        with impatient.link("ps:0", CUT):
            impatient.kill("ps:0")
        impatient.restart("ps:0")
        impatient.go_on(20, AT_LAST_S)


def wait_for_a_recovery(job: Job, before: int) -> None:
    """Nobody waits for ever for a peer that is silent."""
    with job.changed:
        assert job.changed.wait_for(lambda: len(job.told.recoveries) > before, AT_LAST_S)
