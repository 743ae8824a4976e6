"""`make differential`: python -m differential --seconds 600, in the folder of the tests."""

from __future__ import annotations

import random
import time

import click

from tensorwire.cli.main import run_command
from tensorwire.errors import TensorwireError

from . import differential
from .differential import ALONE, Differential, Plan, environment_of
from .pair import Pair


@click.command(help=differential.__doc__)
@click.option("--seconds", type=click.FloatRange(min=1), default=600.0, show_default=True)
@click.option(
    "--seed", default="", help="An epoch, or a program or fault of one.  [default: fresh]"
)
def main(seconds: float, seed: str) -> None:
    began = time.monotonic()

    def say(line: str) -> None:
        click.echo(f"{time.monotonic() - began:7.1f} s  {line}")

    run = Differential(say)
    epoch, _, event = seed.partition(".")
    while time.monotonic() < began + seconds:
        name = epoch or str(random.SystemRandom().randrange(10**9))
        environment = environment_of(name)
        say(f"epoch {name}: " + ", ".join(f"{key}={value}" for key, value in environment.items()))
        with Pair(environment) as pair:
            if event:
                for _ in range(ALONE):
                    run.run(pair, "fault" if event.startswith("f") else "program", seed)
            else:
                run.epoch(pair, name, Plan(), began + seconds)
        if epoch:
            break
    say(str(run.tally))
    if run.findings:
        seeds = ", ".join(finding.seed for finding in run.findings)
        raise TensorwireError(f"{len(run.findings)} findings, seeds {seeds}")
    say("no finding")


if __name__ == "__main__":
    run_command(main, "differential")
