"""The commands that train a model: `tensorwire demo` and `tensorwire bench train`."""

from __future__ import annotations

import dataclasses

import click

from tensorwire.bench.models import MODELS
from tensorwire.cli.hosts import between_hosts
from tensorwire.cli.measuring import train_and_show, training_options
from tensorwire.cli.options import Comparison, comparison_options
from tensorwire.cli.termination import end_in_order
from tensorwire.measure.contenders import EXACT_REWRITES, parse_protocols


@click.command(
    epilog="""\b
Examples:
  tensorwire demo
  tensorwire demo --protocol grpc++ --steps 600 --json demo.json"""
)
@click.option(
    "--protocol",
    "single_protocols",
    multiple=True,
    metavar="NAME",
    help="One protocol, like --protocols; may be repeated.",
)
@training_options
@comparison_options(default_rounds=8, lab=False, rewrites=True)
def demo(
    *,
    single_protocols: tuple[str, ...],
    steps: int,
    ps: int,
    workers: int,
    batch_size: int,
    comparison: Comparison,
) -> None:
    """Train Wide & Deep on real flights: on grpc, grpc++, and grpc++ with all exact rewrites.

    Predicts which flights that left New York in 2013 arrived more than 15 minutes late, with
    parameter servers and asynchronous workers as processes of this machine. The protocols take
    turns; the first turn is warm-up. MB are 10^6 bytes; a message is a call from one task to
    another, or a pushed tensor; the AUC is measured on months that are not used for training.
    If protocols are named, only these are measured, without rewrites.
    """
    from tensorwire.bench.train import TrainPlan

    end_in_order()
    protocols = comparison.protocols
    if single_protocols:
        protocols = parse_protocols(
            ",".join([*single_protocols, *(comparison.named_protocols or ())])
        )
    setting = comparison.setting
    is_named = single_protocols or comparison.named_protocols is not None
    if comparison.named_rewrites is None and not is_named:
        setting = dataclasses.replace(setting, rewrites=(*setting.rewrites, EXACT_REWRITES))
    plan = TrainPlan(
        protocols=protocols,
        ps=ps,
        workers=workers,
        steps=steps,
        batch_size=batch_size,
        rounds=comparison.rounds,
        setting=setting,
    )
    train_and_show("demo", plan, comparison)


@click.command(
    epilog="""\b
Examples:
  tensorwire bench train --model flights
  tensorwire bench train --model ctr --rewrites exact_rewrites,exact_rewrites+bfloat16
  tensorwire bench train --model ctr --tensor-fuse --json train.json"""
)
@click.option(
    "--model",
    type=click.Choice(list(MODELS)),
    default="flights",
    show_default=True,
    help="flights: the demo's model; ctr: 26 categorical and 200 further small columns, synthetic.",
)
@training_options
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=2013,
    show_default=True,
    help="Random seed of the variables' first values and of the batches.",
)
@comparison_options(default_rounds=8, rewrites=True)
@between_hosts("bench train", several=True)
def train(
    *,
    model: str,
    steps: int,
    ps: int,
    workers: int,
    batch_size: int,
    seed: int,
    comparison: Comparison,
) -> None:
    """Train Wide & Deep with ps and workers: steps and examples a second.

    Also measures the AUC on examples that are not used for training, and what a step sends between
    the tasks: MB (of 10^6 bytes) and messages. A message is a call from one task to another, or a
    pushed tensor.
    """
    from tensorwire.bench.train import TrainPlan

    if comparison.part is not None:
        ps, workers = (len(comparison.part.hosts[job]) for job in ("ps", "worker"))
    plan = TrainPlan(
        model=model,
        protocols=comparison.protocols,
        ps=ps,
        workers=workers,
        steps=steps,
        batch_size=batch_size,
        seed=seed,
        rounds=comparison.rounds,
        setting=comparison.setting,
    )
    train_and_show("bench train", plan, comparison)
