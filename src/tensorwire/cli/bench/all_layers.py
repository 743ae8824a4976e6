"""`tensorwire bench all`."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from tensorwire.cli.options import (
    check_transport,
    json_option,
    lab_option,
    protocols_option,
    report_option,
    transport_option,
)
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.lab import LabSettings
from tensorwire.measure.contenders import PROTOCOLS, Setting, parse_protocols


@click.command(
    "all",
    epilog="""\b
Examples:
  tensorwire bench all --report page.html
  tensorwire bench all --quick --json all.json
  tensorwire bench all --lab hosts=2,rate=10gbit,delay=50us --report page.html""",
)
@click.option("--quick", is_flag=True, help="Fewer sizes and rounds: two minutes instead of ten.")
@protocols_option
@transport_option("tcp")
@lab_option
@json_option
@report_option
@click.pass_context
def all_layers(
    context: click.Context,
    *,
    quick: bool,
    protocols: str | None,
    transport: str,
    lab: LabSettings | None,
    json_path: Path | None,
    report_path: Path | None,
) -> None:
    """Measure every layer, from the link to training, and show what each layer loses.

    If a layer fails, its name is printed, the other layers still run, and the exit status is 1.
    After Ctrl-C, the files contain what was measured before.
    """
    from tensorwire.bench.all_layers import INTERRUPTED, AllLayersPlan, layers, run
    from tensorwire.measure import host_pool
    from tensorwire.report import overview, page, terminal
    from tensorwire.report.progress import ProgressDisplay

    named = None if protocols is None else parse_protocols(protocols)
    check_transport(transport, named, "tcp")
    if lab is not None and transport != "tcp":
        raise UsageError(f"--transport {transport}: the hosts of a lab share no memory")
    plan = AllLayersPlan(
        quick=quick,
        protocols=named or PROTOCOLS,
        setting=Setting(transport=transport),
    )
    notes: list[str] = []
    parts = layers(plan, notes)
    blocks = sum(part.blocks for part in parts)
    with ProgressDisplay("bench all", blocks) as progress, host_pool.open_host_pool(lab) as chosen:
        suite = run(parts, notes, progress, chosen)
    is_interrupted = INTERRUPTED in suite.failures.values()
    if is_interrupted and not suite.records:
        raise _interrupted("nothing was written")
    if json_path is not None:
        suite.write(json_path)
    if report_path is not None:
        page.write(report_path, overview.report(suite))
    terminal.show([overview.in_short(suite)])
    if is_interrupted:
        files = [str(path) for path in (json_path, report_path) if path is not None]
        where = " and ".join(files) or "the table"
        raise _interrupted(f"what was measured before is in {where}")
    context.exit(1 if suite.failures else 0)


def _interrupted(what_became: str) -> TensorwireError:
    return TensorwireError(f"interrupted; {what_became}", exit_code=128 + signal.SIGINT)
