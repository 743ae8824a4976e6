"""`tensorwire demo`: real training on this machine, once per protocol, compared."""

from __future__ import annotations

from pathlib import Path

import click

from tensorwire.bench.sides import PROTOCOLS, TRANSPORTS, Setting, parse_protocols


@click.command(
    epilog="""\b
Examples:
  tensorwire demo
  tensorwire demo --protocol grpc++ --steps 600 --json demo.json"""
)
@click.option(
    "--protocol",
    "--protocols",
    "protocols",
    multiple=True,
    metavar="LIST",
    help="grpc, grpc++ or grpc,grpc++; may be repeated.  [default: grpc,grpc++]",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=2000,
    show_default=True,
    help="Training steps of all workers together, for each protocol.",
)
@click.option("--ps", type=click.IntRange(1, 16), default=2, show_default=True)
@click.option("--workers", type=click.IntRange(1, 16), default=2, show_default=True)
@click.option(
    "--batch-size",
    type=click.IntRange(1, 65536),
    default=256,
    show_default=True,
    help="Examples of a step of one worker.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="Turns that the protocols take (A B A B …), after a first one that is not counted.",
)
@click.option("--tensor-fuse", is_flag=True, help="Send tensors of one step together.")
@click.option(
    "--transport",
    type=click.Choice(TRANSPORTS),
    default="auto",
    show_default=True,
    help="How grpc++ moves payloads between tasks of one host.",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write the record to this file.",
)
def demo(
    *,
    protocols: tuple[str, ...],
    steps: int,
    ps: int,
    workers: int,
    batch_size: int,
    rounds: int,
    tensor_fuse: bool,
    transport: str,
    json_path: Path | None,
) -> None:
    """Train Wide & Deep on real flights, on grpc and on grpc++.

    Predicts which flights that left New York in 2013 arrived more than 15 minutes late, with
    parameter servers and asynchronous workers as processes of this machine. The protocols take
    turns. MB are 10^6 bytes; a message is a call from one task to another; the AUC is of months
    that training never sees.
    """
    from tensorwire.bench.train import TrainPlan, run
    from tensorwire.report.tables import show, spread_notes
    from tensorwire.report.training import TrainingDisplay, train_table, verdict

    plan = TrainPlan(
        protocols=parse_protocols(",".join(protocols)) if protocols else PROTOCOLS,
        ps=ps,
        workers=workers,
        steps=steps,
        batch_size=batch_size,
        rounds=rounds,
        setting=Setting(tensor_fuse=tensor_fuse, transport=transport),
    )
    with TrainingDisplay(plan.protocols) as display:
        outcome = run("demo", plan, display)
    title = f"Wide & Deep on flights: {ps} ps, {workers} workers, batches of {batch_size}"
    results = outcome.train_results
    show(train_table(results, title), notes=spread_notes(outcome.ratios))
    sentence = verdict(results, outcome.ratios)
    if sentence:
        click.echo(sentence)
    if json_path is not None:
        outcome.record.write(json_path)
