"""`tensorwire bench`: the experiments, each measured with all protocols in one call."""

from __future__ import annotations

import click

from tensorwire.cli.click_extensions import LazyGroup
from tensorwire.cli.termination import end_in_order

COMMANDS = {
    "all": (
        "tensorwire.cli.bench.all_layers:all_layers",
        "Measure every layer, from the link to training.",
    ),
    "tcp": (
        "tensorwire.cli.bench.tcp:tcp",
        "Measure raw TCP, the upper limit, and iperf3 for comparison.",
    ),
    "rpc": (
        "tensorwire.cli.bench.rpc:rpc",
        "Measure raw RPC without TensorFlow: grpc++ and gRPC.",
    ),
    "transfer": (
        "tensorwire.cli.bench.tensors:transfer",
        "Move one tensor from worker to ps repeatedly.",
    ),
    "steps": (
        "tensorwire.cli.bench.tensors:steps",
        "Time steps that move little: one tiny tensor, and many small ones.",
    ),
    "tails": (
        "tensorwire.cli.bench.tensors:tails",
        "Time small steps while another worker moves large tensors.",
    ),
    "strategy": (
        "tensorwire.cli.bench.strategy:strategy",
        "Schedule functions with a ParameterServerStrategy.",
    ),
    "serve": (
        "tensorwire.cli.bench.serve:serve",
        "Ask one ps for tensors from many clients.",
    ),
    "train": (
        "tensorwire.cli.bench.train:train",
        "Train Wide & Deep with ps and workers of this machine.",
    ),
}


@click.group(
    cls=LazyGroup, lazy=COMMANDS, epilog="Example: tensorwire bench transfer --data-mb 100"
)
def bench() -> None:
    """Measure the layers below a training step, on this machine or between two hosts."""
    end_in_order()
