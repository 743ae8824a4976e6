"""`tensorwire check`: what works on this machine and in a cluster, and what to do."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tensorwire.cli.click_extensions import Number
from tensorwire.cli.options import json_option
from tensorwire.cli.tensorflow import quiet_tensorflow
from tensorwire.cluster import ClusterSpec, endpoint_map_path, parse_tf_config
from tensorwire.errors import TensorwireError
from tensorwire.files import write_whole

if TYPE_CHECKING:
    from tensorwire.doctor.evidence import Finding

_MARKS = {"ok": ("ok", "green"), "warning": ("warn", "yellow"), "error": ("FAIL", "red")}


@click.command(
    epilog="""\b
Examples:
  tensorwire check
  tensorwire check --ps-hosts host1:2222,host2:2222 --worker-hosts host3:2222
  TF_CONFIG='{"cluster": …}' tensorwire check"""
)
@click.option("--ps-hosts", metavar="LIST", help="gRPC addresses of the ps: HOST:PORT with commas.")
@click.option("--worker-hosts", metavar="LIST", help="gRPC addresses of the workers.")
@click.option(
    "--timeout",
    "timeout_s",
    type=Number(min=0.1, max=60),
    default=3.0,
    show_default=True,
    help="Seconds to wait for each port.",
)
@json_option
def check(
    ps_hosts: str | None, worker_hosts: str | None, timeout_s: float, json_path: Path | None
) -> None:
    """Say what works on this machine and in a running cluster, and what to do.

    The cluster is named by options, or by TF_CONFIG. Run this command on the host of each task:
    ports may be open from one host and closed from another. The exit status is 1 if anything fails.
    """
    quiet_tensorflow()
    from tensorwire.doctor.check_machine import machine
    from tensorwire.doctor.check_tasks import tasks

    cluster = _cluster(ps_hosts, worker_hosts)
    found = _show(machine())
    if cluster is not None:
        found += _show(tasks(cluster, timeout_s, endpoint_map_path()))
    if json_path is not None:
        named = [
            {"state": f.state, "subject": f.rule, "text": f.title, "advice": f.change}
            for f in found
        ]
        document = {"command": "check", "findings": named}
        write_whole(json_path, json.dumps(document, indent=1) + "\n")
    failed = [each.rule for each in found if each.state == "error"]
    if failed:
        raise TensorwireError(f"{len(failed)} of {len(found)} checks failed: {', '.join(failed)}")


def _cluster(ps_hosts: str | None, worker_hosts: str | None) -> ClusterSpec | None:
    named: dict[str, Any] = {"ps": ps_hosts, "worker": worker_hosts}
    hosts = {job: text for job, text in named.items() if text is not None}
    if hosts:
        return ClusterSpec.from_hosts(**hosts)
    config = parse_tf_config(os.environ.get("TF_CONFIG", ""))
    return None if config is None else config.cluster


def _show(findings: Iterable[Finding]) -> list[Finding]:
    """Prints each finding as soon as it is made, and returns all of them."""
    shown = []
    for each in findings:
        mark, colour = _MARKS[each.state]
        click.echo(f"{click.style(f'{mark:>4}', fg=colour)}  {each.rule}: {each.title}")
        if each.change:
            click.echo(f"      {each.change}")
        shown.append(each)
    return shown
