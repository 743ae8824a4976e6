"""Tasks that are killed and restarted, frozen, or cut off, while a job trains on grpc++.

The job itself (`survival_task`) compares the results of every step with those of an undisturbed
job. So if a test continues, no step was lost, repeated or trained on other data.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.relaying import DisturbedLink
from harness.survival import Job, JobSettings, lab_for
from tensorwire.bench.lab import HostSettings

from .support import AT_LAST_S, go_on_undisturbed, nothing_leaks

pytestmark = pytest.mark.timeout(240, method="thread", func_only=True)

PEER_TIMEOUT_S = 2
# The error after a process is killed depends on whether it had unread data.
LOST = ("closed the connection", "Connection reset by peer")
CUT = HostSettings(is_cut=True)


@contextlib.contextmanager
def training(
    directory: Path, environment: dict[str, str], *, relayed: bool = False
) -> Iterator[Job]:
    """A training job that must end, after all faults, with the result of an undisturbed job."""
    settings = JobSettings("grpc++", environment=environment)
    with lab_for(settings, relayed=relayed) as lab, Job(settings, directory, lab=lab) as job:
        job.go_on(100, AT_LAST_S)
        yield job
        job.stop()


@pytest.fixture(scope="module")
def patient(plugin: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A job with the default peer timeout: a task counts as lost after 30 s of silence."""
    with training(tmp_path_factory.mktemp("patient"), {}, relayed=True) as job:
        yield job


@pytest.fixture(scope="module")
def impatient(plugin: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A job in which a peer counts as lost after PEER_TIMEOUT_S."""
    variables = {"TENSORWIRE_PEER_TIMEOUT_S": str(PEER_TIMEOUT_S)}
    with training(tmp_path_factory.mktemp("impatient"), variables) as job:
        yield job


def recover(job: Job, before: int, *says: str) -> None:
    """Checks that training continues, and that an error names a task and one text of `says`."""
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
    with nothing_leaks(patient):
        with patient.frozen("ps:0"):
            time.sleep(1)
        go_on_undisturbed(patient)


def test_a_link_cut_for_a_moment_costs_only_that_moment(patient: Job) -> None:
    needs_links(patient)
    with nothing_leaks(patient):
        with patient.link("ps:0", CUT):
            time.sleep(1)
        go_on_undisturbed(patient)


@pytest.mark.parametrize(
    ("link", "steps"),
    [
        (DisturbedLink(loss=0.01), 40),
        (DisturbedLink(loss=0.1), 5),
        (HostSettings(delay_s=0.01), 10),
        (DisturbedLink(late=0.1, late_s=0.005), 40),
        (HostSettings(rate_bits_per_s=1e6), 5),
    ],
    ids=["1 % of packets lost", "10 % lost", "delayed", "out of order", "1 Mbit/s"],
)
def test_a_bad_link_slows_a_job_down_and_nobody_is_taken_for_lost(
    patient: Job, link: HostSettings, steps: int
) -> None:
    needs_links(patient)
    with nothing_leaks(patient), patient.link("ps:0", link):
        go_on_undisturbed(patient, steps)


@pytest.mark.newest
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
        # The error depends on whether something was being sent.
        recover(impatient, before, "has been silent for", "Connection timed out")


@pytest.mark.newest
def test_a_connection_whose_other_end_went_without_a_word(impatient: Job) -> None:
    """The ps dies while its link is cut, so its peers are not notified."""
    needs_links(impatient)
    with nothing_leaks(impatient, "worker:0", "worker:1"):
        with impatient.link("ps:0", CUT):
            impatient.kill("ps:0")
        impatient.restart("ps:0")
        impatient.go_on(20, AT_LAST_S)


def wait_for_a_recovery(job: Job, before: int) -> None:
    """Waits until the session was restarted: no task waits forever for a silent peer."""
    with job.changed:
        assert job.changed.wait_for(lambda: len(job.told.recoveries) > before, AT_LAST_S)
