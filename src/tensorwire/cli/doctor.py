"""`tensorwire doctor`: why a job does not scale, and what to change next; `tensorwire check`: what
works on this machine and in a cluster.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from tensorwire.cli.click_extensions import SectionedCommand, takes
from tensorwire.cli.options import SERVER, Output, TwoEnds, two_ends_options
from tensorwire.cli.tensorflow import model_of_file, quiet_tensorflow
from tensorwire.cluster import ClusterSpec, endpoint_map_path, parse_tf_config
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.files import read_json
from tensorwire.laboratory import laboratory
from tensorwire.options import option
from tensorwire.units import RATE_EXAMPLE, parse_rate

if TYPE_CHECKING:
    from tensorwire.doctor.evidence import Evidence, Finding, InputProbe, Layers, Placement

_PROBE_S = 5.0
_MARKS = {"ok": ("ok", "green"), "warning": ("warn", "yellow"), "error": ("FAIL", "red")}


def _link(text: str) -> float:
    """The MB a second of "10gbit"."""
    rate = parse_rate(text)
    if not rate:
        raise UsageError(f"--link {text} is no rate: write it as {RATE_EXAMPLE}")
    return rate / 8e6


@dataclass(frozen=True)
class DoctorOptions:
    """What the doctor looks at."""

    SECTIONS: ClassVar = {
        "A running job": ("endpoints", "seconds", "wait_s", "link_mb_per_s", "records"),
        "A placement": ("plan_path", "graph", "ps"),
        "Input data": ("data", "data_mb_per_step"),
        "Layers of this machine": ("layers", "lab_text"),
    }

    endpoints: str | None = option(
        None,
        "Tasks of the job: HOST:PORT or unix:PATH, with commas.  "
        "[default: those of this user on this host]",
        metavar="LIST",
    )
    seconds: float = option(10.0, "Seconds to observe the job.", least=0.5, most=600)
    wait_s: float | None = option(
        None,
        "Wait at most this long until a worker takes steps, then observe.",
        name="--wait",
        metavar="SECONDS",
        least=0,
        most=3600,
    )
    link_mb_per_s: float | None = option(
        None,
        "Rate of each host's link, such as 10gbit: says whether the job fills it.",
        name="--link",
        metavar="RATE",
        parse=_link,
    )
    records: Sequence[Path] = option(
        (),
        "Diagnose a recorded look (--json) again; several records show how the job scales.",
        name="--record",
        metavar="FILE.json",
        repeated=True,
    )
    plan_path: Path | None = option(
        None,
        "Diagnose a placement that `tensorwire place --placement … --json` wrote.",
        name="--placement-file",
        metavar="FILE.json",
    )
    graph: Path | None = option(
        None,
        "Diagnose TensorFlow's own placement (round robin) of this graph: a SavedModel's folder, "
        "a .meta file, a graph.pbtxt.",
        path="any",
    )
    ps: int | None = option(None, "Number of ps, with --graph.", least=1)
    data: str | None = option(
        None,
        "Read this training data, a file, a folder or a pattern, through tf.io.gfile.",
        metavar="PATH",
    )
    data_mb_per_step: float | None = option(
        None,
        "MB (10^6 bytes) that a worker reads per step, to compare with the rate of --data.",
        above=0,
    )
    layers: bool = option(
        False, "Measure TCP, RPC and tensors between two processes of this machine, in a minute."
    )
    lab_text: str | None = option(
        None, "Like --layers, in a lab: hosts=2,…", name="--lab", metavar="SPEC"
    )
    exit_code: bool = option(False, "End with status 1 if anything is found.")

    def __post_init__(self) -> None:
        if self.records and self.endpoints:
            raise UsageError("give --endpoints of a running job or --record of an earlier look")
        if self.data_mb_per_step is not None and self.data is None:
            raise UsageError("--data-mb-per-step is for --data: give that, too")
        if (self.graph is None) != (self.ps is None):
            raise UsageError("--graph and --ps go together")


@click.command(
    cls=SectionedCommand,
    epilog="""\b
Examples:
  tensorwire doctor
  tensorwire doctor --endpoints ps-0:9100,worker-0:9100 --data hdfs://nn/train --report page.html
  tensorwire doctor --job server                        # on host1, and on host2:
  tensorwire doctor --job client --target host1:12222
  tensorwire doctor --record with-4-workers.json --record with-8-workers.json
  tensorwire doctor --graph model.ckpt-1000.meta --ps 5""",
)
@takes(DoctorOptions, "options")
@takes(Output, "output")
@two_ends_options
def doctor(*, ends: TwoEnds, options: DoctorOptions, output: Output) -> None:
    """Say why a job does not scale: the most expensive cause first, with the change to make.

    Looks at the metrics of a running job's tasks, at a placement, at the input data, and at the
    layers between two hosts (--job server on one, --job client --target on the other).
    """
    from tensorwire.doctor.diagnose import diagnose
    from tensorwire.doctor.records import to_json
    from tensorwire.report import doctor as report

    if ends.job == SERVER:
        _layers(ends, None)
        return
    diagnosis = diagnose(_evidence(ends, options))
    output.give(
        lambda: to_json(diagnosis),
        lambda: click.echo("\n".join(report.lines(diagnosis))),
        lambda: report.page(diagnosis),
    )
    if options.exit_code and diagnosis.findings:
        rules = ", ".join(each.rule for each in diagnosis.findings)
        raise TensorwireError(f"{len(diagnosis.findings)} findings: {rules}")


def _evidence(ends: TwoEnds, options: DoctorOptions) -> Evidence:
    """All that the options name, the files first: observing a job takes longer."""
    placement = _placement(options)
    read = None if options.data is None else _read(options.data)
    measures_layers = bool(options.layers or options.lab_text or ends.target)
    evidence = _evidence_of_job(options, needs_job=not (placement or read or measures_layers))
    if options.link_mb_per_s is not None:
        evidence = evidence.with_link(options.link_mb_per_s)
    if measures_layers:
        evidence = replace(evidence, layers=_layers(ends, options.lab_text))
    if placement is not None:
        evidence = replace(evidence, placement=placement)
    if read is not None:
        evidence = replace(evidence, input=_input_probe(options, read, evidence))
    return evidence


def _evidence_of_job(options: DoctorOptions, *, needs_job: bool) -> Evidence:
    """The evidence about a job: from its running tasks, or from the last of several records."""
    import tensorwire
    from tensorwire.doctor import job_evidence
    from tensorwire.doctor.evidence import Evidence
    from tensorwire.doctor.records import read, scaling_of
    from tensorwire.machine import Machine
    from tensorwire.metrics.observed_job import NO_TASK, ObservedJob, addresses_of
    from tensorwire.report.progress import ProgressDisplay

    if options.records:
        recorded = [read(path) for path in options.records]
        return replace(recorded[-1], scaling=scaling_of(recorded) or recorded[-1].scaling)
    job = ObservedJob(None if options.endpoints is None else addresses_of(options.endpoints))
    if options.wait_s:
        with ProgressDisplay("waiting for a worker's steps", 1, is_long=False):
            job_evidence.wait_for_steps(job, options.wait_s)
    addresses = job.addresses()
    evidence = Evidence()
    if addresses:
        observing = f"looking at {len(addresses)} tasks for {options.seconds:g} s"
        with ProgressDisplay(observing, 1, is_long=False):
            evidence = job_evidence.observe(addresses, options.seconds)
    elif needs_job:
        raise TensorwireError(
            f"nothing to look at: {NO_TASK}; or examine something else with --layers, --graph, "
            "--placement-file, --data or --record",
            page="docs/doctor.md",
        )
    return replace(evidence, machine=Machine.here(), version=tensorwire.__version__)


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


def _placement(options: DoctorOptions) -> Placement | None:
    from tensorwire.doctor.records import placement_of_document, placement_of_plan
    from tensorwire.placement.plan import round_robin

    if options.plan_path is not None:
        return placement_of_document(read_json(options.plan_path), str(options.plan_path))
    if options.graph is not None and options.ps is not None:
        variables = model_of_file(options.graph).variables
        return placement_of_plan(round_robin(variables, options.ps), str(options.graph))
    return None


def _read(path: str) -> Any:
    quiet_tensorflow()
    return laboratory("experiments.input").probe(path, _PROBE_S)


def _input_probe(options: DoctorOptions, rate: Any, evidence: Evidence) -> InputProbe:
    from tensorwire.doctor.evidence import InputProbe

    step_s = evidence.job.step_s if evidence.job is not None else None
    per_step_mb = options.data_mb_per_step
    source = f"{rate.files} files at {options.data}, read one after the other for "
    source += f"{rate.seconds:.2g} s: {rate.mb_per_s:.4g} MB/s"
    if per_step_mb and not step_s:
        source += f", enough for {rate.mb_per_s / per_step_mb:.3g} steps a second of one worker"
    return InputProbe(
        source=source,
        mb_per_s=rate.mb_per_s,
        open_ms=rate.open_ms,
        needed_mb_per_s=per_step_mb / step_s if per_step_mb and step_s else None,
    )


@dataclass(frozen=True)
class CheckOptions:
    """The cluster that is checked."""

    ps_hosts: str | None = option(
        None, "gRPC addresses of the ps: HOST:PORT with commas.", metavar="LIST"
    )
    worker_hosts: str | None = option(None, "gRPC addresses of the workers.", metavar="LIST")
    chief_hosts: str | None = option(None, "gRPC address of the chief.", metavar="LIST")
    timeout_s: float = option(
        3.0, "Seconds to wait for each port.", name="--timeout", least=0.1, most=60
    )


@click.command(
    epilog="""\b
Examples:
  tensorwire check
  tensorwire check --ps-hosts host1:2222,host2:2222 --worker-hosts host3:2222
  TF_CONFIG='{"cluster": …}' tensorwire check"""
)
@takes(CheckOptions, "options")
@takes(Output, "output", "form", "json_path")
def check(options: CheckOptions, output: Output) -> None:
    """Say what works on this machine and in a running cluster, and what to do.

    The cluster is named by options, or by TF_CONFIG. Run this command on the host of each task:
    ports may be open from one host and closed from another. The exit status is 1 if anything fails.
    """
    quiet_tensorflow()
    from tensorwire.doctor.check import machine, tasks

    cluster = _cluster(options)
    checks = machine()
    if cluster is not None:
        checks = itertools.chain(checks, tasks(cluster, options.timeout_s, endpoint_map_path()))
    found = []
    for each in checks:  # a line as soon as a check is made
        found.append(each)
        if not output.is_json:
            _show(each)

    def document() -> str:
        named = [
            {"state": f.state, "subject": f.rule, "text": f.title, "advice": f.change}
            for f in found
        ]
        return json.dumps({"command": "check", "findings": named}, indent=1) + "\n"

    output.give(document, lambda: None)
    failed = [each.rule for each in found if each.state == "error"]
    if failed:
        raise TensorwireError(f"{len(failed)} of {len(found)} checks failed: {', '.join(failed)}")


def _cluster(options: CheckOptions) -> ClusterSpec | None:
    named: dict[str, Any] = {
        "chief": options.chief_hosts,
        "worker": options.worker_hosts,
        "ps": options.ps_hosts,
    }
    hosts = {job: text for job, text in named.items() if text is not None}
    if hosts:
        return ClusterSpec.from_hosts(**hosts)
    config = parse_tf_config(os.environ.get("TF_CONFIG", ""))
    return None if config is None else config.cluster


def _show(finding: Finding) -> None:
    mark, colour = _MARKS[finding.state]
    click.echo(f"{click.style(f'{mark:>4}', fg=colour)}  {finding.rule}: {finding.title}")
    if finding.change:
        click.echo(f"      {finding.change}")
