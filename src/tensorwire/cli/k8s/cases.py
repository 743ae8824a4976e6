"""`tensorwire k8s cases`."""

from __future__ import annotations

from pathlib import Path

import click

from tensorwire.cli.k8s.options import cases_option


@click.command(epilog="Example: tensorwire k8s cases --cases mine.yaml")
@cases_option
def cases(cases_file: Path | None) -> None:
    """List the two scenarios (layouts) and their cases: those of the published test, and yours.

    A file of cases: {"cases": [{"name": "small", "workers": 4, "ps": 2, "workers_per_node": 2}]}
    """
    from rich.console import Console

    from tensorwire.k8s.cases import PUBLISHED, read_cases
    from tensorwire.report.k8s import cases_table

    mine = read_cases(cases_file) if cases_file else ()
    Console().print(cases_table([*PUBLISHED, *mine]))
