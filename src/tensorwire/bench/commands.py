"""`tensorwire bench`: the experiments, each measured with all protocols in one call."""

from __future__ import annotations

import click

from tensorwire.cli.click_extensions import LazyGroup
from tensorwire.cli.main import end_in_order

_IN = "tensorwire.bench.experiments"

COMMANDS = {
    "all": (f"{_IN}.all_layers:command", "Measure every layer, from the link to training."),
    "tcp": (f"{_IN}.tcp:command", "Measure raw TCP, the upper limit, and iperf3 for comparison."),
    "rpc": (f"{_IN}.rpc:command", "Measure raw RPC without TensorFlow: grpc++ and gRPC."),
    "transfer": (f"{_IN}.transfer:command", "Move one tensor from worker to ps repeatedly."),
    "steps": (
        f"{_IN}.steps:command",
        "Time steps that move little: one tiny tensor, and many small ones.",
    ),
    "tails": (f"{_IN}.tails:command", "Time small steps while another worker moves large tensors."),
    "strategy": (f"{_IN}.strategy:command", "Schedule functions with a ParameterServerStrategy."),
    "serve": (f"{_IN}.serve:command", "Ask one ps for tensors from many clients."),
    "train": (f"{_IN}.train:train", "Train a click-through model with ps and workers."),
}


@click.group(
    cls=LazyGroup, lazy=COMMANDS, epilog="Example: tensorwire bench transfer --data-mb 100"
)
def bench() -> None:
    """Measure the layers below a training step, on this machine or between two hosts."""
    end_in_order()
