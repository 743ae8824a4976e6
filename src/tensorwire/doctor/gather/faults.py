"""Evidence of jobs that are made to have one fault each: the table of docs/doctor.md."""

from __future__ import annotations

import dataclasses

import tensorwire
from tensorwire.bench import faults
from tensorwire.bench.faults import FaultJob
from tensorwire.bench.places import chosen
from tensorwire.bench.record import Host
from tensorwire.bench.sides import Watcher
from tensorwire.doctor.evidence import Evidence
from tensorwire.doctor.gather import layers, running
from tensorwire.doctor.gather.running import Surroundings
from tensorwire.doctor.records import scaling_of
from tensorwire.errors import TensorwireError
from tensorwire.lab import LabSettings


def look(job: FaultJob, seconds: float, watcher: Watcher) -> Evidence:
    """Runs the job and looks at it as `tensorwire doctor` does, for `seconds`.

    Raises:
        TensorwireError: a task failed, or this machine cannot make the fault.
    """
    if job.protocol == "grpc":
        return _look_at_layers(job, watcher)
    if job.fewer_workers is None:
        return _look(job, seconds, watcher)
    few = _look(dataclasses.replace(job, workers=job.fewer_workers), seconds, watcher)
    many = _look(job, seconds, watcher)
    return dataclasses.replace(many, scaling=scaling_of([few, many]))


def _look_at_layers(job: FaultJob, watcher: Watcher) -> Evidence:
    """Of stock gRPC there are no figures, and the job itself would be in the way."""
    with chosen(LabSettings((job.ps_host, job.worker_host))) as places:
        if not places.have_link:
            raise TensorwireError(f"this machine cannot make {job.name!r}: it has no lab")
        measured = layers.measure(watcher, places)
    return Evidence(layers=measured, machine=Host.here(), version=tensorwire.__version__)


def _look(job: FaultJob, seconds: float, watcher: Watcher) -> Evidence:
    with faults.running(job, watcher) as run:
        if run.notes:
            raise TensorwireError(f"this machine cannot make {job.name!r}: {'; '.join(run.notes)}")
        given = Surroundings(links_mb_per_s=run.links_mb_per_s, hosts=run.hosts)
        evidence = running.look(run.endpoints, seconds, given)
    return dataclasses.replace(
        evidence,
        machine=Host.here(),
        version=tensorwire.__version__,
        tensorflow=run.tensorflow,
    )
