"""`tensorwire doctor`: why a job does not scale, and what to change next."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tensorwire.cli.click_extensions import Number
from tensorwire.cli.options import json_option, report_option
from tensorwire.cli.tensorflow import model_of_file, quiet_tensorflow
from tensorwire.cli.two_ends import SERVER, TwoEnds, two_ends_options
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.files import read_json
from tensorwire.laboratory import laboratory
from tensorwire.units import RATE_EXAMPLE, parse_rate

if TYPE_CHECKING:
    from tensorwire.doctor.evidence import Evidence, InputProbe, Layers, Placement

_PROBE_S = 5.0


def _rate(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """The bits a second of "10gbit"."""
    if text is None:
        return None
    rate = parse_rate(text)
    if not rate:
        raise UsageError(f"--link {text} is no rate: write it as {RATE_EXAMPLE}")
    return rate


@click.command(
    epilog="""\b
Examples:
  tensorwire doctor
  tensorwire doctor --endpoints ps-0:9100,worker-0:9100 --data hdfs://nn/train --report page.html
  tensorwire doctor --job server                        # on host1, and on host2:
  tensorwire doctor --job client --target host1:12222
  tensorwire doctor --record with-4-workers.json --record with-8-workers.json
  tensorwire doctor --graph model.ckpt-1000.meta --ps 5"""
)
@click.option(
    "--endpoints",
    metavar="LIST",
    help="Tasks of the job: HOST:PORT or unix:PATH, with commas.  "
    "[default: those of this user on this host]",
)
@click.option(
    "--seconds",
    type=Number(min=0.5, max=600),
    default=10.0,
    show_default=True,
    help="Seconds to observe the job.",
)
@click.option(
    "--wait",
    "wait_s",
    metavar="SECONDS",
    type=Number(min=0, max=3600),
    default=0.0,
    help="Wait at most this long until a worker takes steps, then observe.",
)
@click.option(
    "--link",
    metavar="RATE",
    callback=_rate,
    help="Rate of each host's link, such as 10gbit: says whether the job fills it.",
)
@click.option(
    "--record",
    "records",
    multiple=True,
    metavar="FILE.json",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Diagnose a recorded look (--json) again; several records show how the job scales.",
)
@click.option(
    "--plan",
    "plan_path",
    metavar="FILE.json",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Diagnose a placement that `tensorwire place --strategy … --json` wrote.",
)
@click.option(
    "--graph",
    type=click.Path(path_type=Path),
    help="Diagnose TensorFlow's own placement (round robin) of this graph: a SavedModel's folder, "
    "a .meta file, a graph.pbtxt.",
)
@click.option("--ps", type=click.IntRange(min=1), help="Number of ps, with --graph.")
@click.option(
    "--data",
    metavar="PATH",
    help="Read this training data, a file, a folder or a pattern, through tf.io.gfile.",
)
@click.option(
    "--data-mb-per-step",
    type=Number(min=0, min_open=True),
    help="MB (10^6 bytes) that a worker reads per step, to compare with the rate of --data.",
)
@click.option(
    "--layers",
    is_flag=True,
    help="Measure TCP, RPC and tensors between two processes of this machine, in a minute.",
)
@click.option("--lab", "lab_text", metavar="SPEC", help="Like --layers, in a lab: hosts=2,…")
@json_option
@report_option
@two_ends_options
def doctor(
    *,
    ends: TwoEnds,
    layers: bool,
    lab_text: str | None,
    endpoints: str | None,
    seconds: float,
    wait_s: float,
    link: float | None,
    records: tuple[Path, ...],
    plan_path: Path | None,
    graph: Path | None,
    ps: int | None,
    data: str | None,
    data_mb_per_step: float | None,
    json_path: Path | None,
    report_path: Path | None,
) -> None:
    """Say why a job does not scale: the most expensive cause first, with the change to make.

    Looks at the metrics of a running job's tasks, at a placement, at the input data, and at the
    layers between two hosts (--job server on one, --job client --target on the other).
    """
    from tensorwire.doctor import job_evidence
    from tensorwire.doctor import records as kept
    from tensorwire.doctor.diagnose import diagnose
    from tensorwire.report import doctor as report
    from tensorwire.report import page

    if ends.job == SERVER:
        _layers(ends, None)
        return
    if records and endpoints:
        raise UsageError("give --endpoints of a running job or --record of an earlier look")
    if (graph is None) != (ps is None):
        raise UsageError("--graph and --ps go together")
    others = plan_path or graph or data or layers or lab_text or ends.target
    if plan_path is not None:  # read first: a look at the job takes longer
        placement = _placement(plan_path)
    elif graph is not None and ps is not None:
        placement = _placement_of_graph(graph, ps)
    else:
        placement = None
    read = None if data is None else _read(data)
    evidence = _of_job(endpoints, wait_s, seconds, records, needs_job=not others)
    if link is not None:
        evidence = job_evidence.with_link(evidence, link / 8e6)
    if layers or lab_text or ends.target:
        evidence = dataclasses.replace(evidence, layers=_layers(ends, lab_text))
    if placement is not None:
        evidence = dataclasses.replace(evidence, placement=placement)
    if data is not None and read is not None:
        probe = _probe(data, read, evidence, data_mb_per_step)
        evidence = dataclasses.replace(evidence, input=probe)
    diagnosis = diagnose(evidence)
    if json_path is not None:
        try:
            json_path.write_text(kept.to_json(diagnosis), encoding="utf-8")
        except OSError as error:
            raise TensorwireError(f"cannot write {json_path}: {error.strerror}") from error
    if report_path is not None:
        page.write(report_path, report.page(diagnosis))
    for line in report.lines(diagnosis):
        click.echo(line)


def _of_job(
    endpoints: str | None,
    wait_s: float,
    seconds: float,
    records: tuple[Path, ...],
    *,
    needs_job: bool,
) -> Evidence:
    """The evidence about a job: from its running tasks, or from the last of several records."""
    import tensorwire
    from tensorwire.doctor import job_evidence
    from tensorwire.doctor.evidence import Evidence
    from tensorwire.doctor.records import read, scaling_of
    from tensorwire.machine import Machine
    from tensorwire.metrics.observed_job import NO_TASK, ObservedJob, addresses_of
    from tensorwire.report.progress import ProgressDisplay

    if records:
        looks = [read(path) for path in records]
        return dataclasses.replace(looks[-1], scaling=scaling_of(looks) or looks[-1].scaling)
    job = ObservedJob(None if endpoints is None else addresses_of(endpoints))
    if wait_s:
        with ProgressDisplay("waiting for a worker's steps", 1, is_long=False):
            job_evidence.wait_for_steps(job, wait_s)
    addresses = job.addresses()
    evidence = Evidence()
    if addresses:
        looking = f"looking at {len(addresses)} tasks for {seconds:g} s"
        with ProgressDisplay(looking, 1, is_long=False):
            evidence = job_evidence.look(addresses, seconds)
    elif needs_job:
        raise TensorwireError(
            f"nothing to look at: {NO_TASK}; or examine something else with --layers, --graph, "
            "--plan, --data or --record",
            page="docs/doctor.md",
        )
    return dataclasses.replace(evidence, machine=Machine.here(), version=tensorwire.__version__)


def _layers(ends: TwoEnds, lab_text: str | None) -> Layers | None:
    """The layers between this host and another, or within this host; None for a server."""
    from tensorwire.report.progress import ProgressDisplay

    layers = laboratory("experiments.layers")
    with ProgressDisplay("doctor", layers.STEPS) as progress:
        found: Layers | None = (
            layers.measure_in(lab_text, progress)
            if ends.job is None
            else layers.measure_between(ends, progress)
        )
    return found


def _placement(path: Path) -> Placement:
    from tensorwire.doctor.records import placement_of_document

    return placement_of_document(read_json(path), str(path))


def _placement_of_graph(path: Path, ps: int) -> Placement:
    from tensorwire.doctor.records import placement_of_plan
    from tensorwire.placement.plan import round_robin

    return placement_of_plan(round_robin(model_of_file(path).variables, ps), str(path))


def _read(path: str) -> Any:
    quiet_tensorflow()
    return laboratory("experiments.input").probe(path, _PROBE_S)


def _probe(path: str, rate: Any, evidence: Evidence, mb_per_step: float | None) -> InputProbe:
    from tensorwire.doctor.evidence import InputProbe
    from tensorwire.doctor.job_usage import typical_step_s

    step_s = typical_step_s(evidence.job) if evidence.job is not None else None
    return InputProbe(
        source=f"{rate.files} files at {path}, read one after the other for {rate.seconds:.2g} s",
        mb_per_s=rate.mb_per_s,
        open_ms=rate.open_ms,
        needed_mb_per_s=mb_per_step / step_s if mb_per_step and step_s else None,
    )
