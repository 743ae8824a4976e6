"""`make differential`: python -m differential --seconds 600, in the folder of the tests."""

from __future__ import annotations

import random
import sys
import time

import click

from tensorwire.errors import TensorwireError

from . import differential
from .differential import ALONE, Differential, Finding, Plan, Tally, environment_of
from .pair import Pair

PROGRESS_S = 30.0


@click.command(help=differential.__doc__)
@click.option("--seconds", type=click.FloatRange(min=1), default=600.0, show_default=True)
@click.option(
    "--seed", default="", help="An epoch, or a program or fault of one.  [default: fresh]"
)
def main(seconds: float, seed: str) -> None:
    began = time.monotonic()
    deadline = began + seconds
    told = began
    findings: list[Finding] = []
    programs = faults = 0

    def say(line: str) -> None:
        click.echo(f"{time.monotonic() - began:7.1f} s  {line}")

    def progress(tally: Tally) -> None:
        nonlocal told
        if time.monotonic() - told > PROGRESS_S:
            told = time.monotonic()
            rate = (programs + tally.programs) / (told - began)
            say(
                f"{programs + tally.programs} programs, {rate:.2f} a second, "
                f"{faults + tally.faults} faults, {len(findings)} findings before this epoch"
            )

    epoch, _, event = seed.partition(".")
    while time.monotonic() < deadline:
        name = epoch or str(random.SystemRandom().randrange(10**9))
        environment = environment_of(name)
        say(f"epoch {name}: " + ", ".join(f"{key}={value}" for key, value in environment.items()))
        with Pair(environment) as pair:
            run = Differential(pair, say, progress)
            if event:
                for _ in range(ALONE):
                    run.run("fault" if event.startswith("f") else "program", seed)
            else:
                run.epoch(name, Plan(), deadline)
        programs, faults = programs + run.tally.programs, faults + run.tally.faults
        findings += run.findings
        say(f"{run.tally}")
        if epoch:
            break
    if findings:
        seeds = ", ".join(finding.seed for finding in findings)
        raise TensorwireError(f"{len(findings)} findings, seeds {seeds}")
    say(f"{programs} programs and {faults} faults, no finding")


if __name__ == "__main__":
    try:
        main(standalone_mode=False)
    except click.Abort:
        sys.exit(130)
    except (TensorwireError, click.ClickException) as error:
        sys.exit(f"differential: {error}")
