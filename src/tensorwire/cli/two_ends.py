"""Options of a measurement between two hosts: --job server on one, --job client on the other."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from tensorwire.cli.click_extensions import Number, refuse_unused
from tensorwire.cluster import split_address
from tensorwire.errors import UsageError

Command = TypeVar("Command", bound=Callable[..., Any])

_TWO = "is for two hosts: give --job server, or --job client --target HOST:PORT, too"
SERVER, CLIENT = "server", "client"
DEFAULT_PORT = 12222


@dataclass(frozen=True)
class TwoEnds:
    """The options for this host's part in a measurement between two hosts."""

    job: str | None
    """SERVER, CLIENT, or None: both ends run here."""
    port: int
    peer_timeout_s: float
    target: str | None
    """The address of the server that a client connects to; None for all others."""


def _ends(job: str | None, target: str | None, port: int, peer_timeout_s: float) -> TwoEnds:
    """Raises UsageError if --job and --target contradict each other."""
    if (job == CLIENT) != (target is not None):
        raise UsageError(
            "two hosts need --job server on one and --job client --target HOST:PORT on the other"
        )
    if target is not None:
        split_address(target)
    return TwoEnds(job, port, peer_timeout_s, target)


def two_ends_options(command: Command) -> Command:
    """--job, --target, --port and --peer-timeout; the command gets them as `ends`."""

    @functools.wraps(command)
    def with_ends(
        *, job: str | None, target: str | None, port: int, peer_timeout: float, **others: Any
    ) -> Any:
        ends = _ends(job, target, port, peer_timeout)
        if job is None:
            refuse_unused(_TWO, "port", "peer_timeout")
        return command(ends=ends, **others)

    decorated: Any = with_ends
    for option in reversed(
        [
            click.option(
                "--job",
                type=click.Choice([SERVER, CLIENT]),
                help="Two hosts: the role of this host. The server ends with its client.",
            ),
            click.option(
                "--target",
                metavar="HOST:PORT",
                help="Two hosts: address of the server, for the client.",
            ),
            click.option(
                "--port",
                type=click.IntRange(1, 65535),
                default=DEFAULT_PORT,
                show_default=True,
                help="Two hosts: port of the server; what is measured uses the ports above it, and "
                "those + 20000.",
            ),
            click.option(
                "--peer-timeout",
                type=Number(min=0, min_open=True),
                default=120.0,
                show_default=True,
                help="Two hosts: seconds to wait for the other host.",
            ),
        ]
    ):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]
