"""The options of an experiment whose server and client may be on different hosts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from tensorwire.bench.raw_processes import CLIENT, DEFAULT_PORT, SERVER, Target
from tensorwire.cli.click_extensions import Number
from tensorwire.errors import UsageError

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class TwoEnds:
    """What was said of this host's part."""

    job: str | None
    """SERVER, CLIENT, or None: both ends run here."""
    port: int
    peer_timeout_s: float
    target: Target | None
    """The server, of a client."""


def _ends(job: str | None, target: str | None, port: int, peer_timeout_s: float) -> TwoEnds:
    """Raises UsageError: the parts do not fit."""
    if (job == CLIENT) != (target is not None):
        raise UsageError(
            "two hosts need --job server on one and --job client --target HOST:PORT on the other"
        )
    return TwoEnds(job, port, peer_timeout_s, Target(target, peer_timeout_s) if target else None)


def two_ends_options(command: Command) -> Command:
    """--job, --target, --port and --peer-timeout; the command gets them as `ends`."""

    @functools.wraps(command)
    def with_ends(
        *, job: str | None, target: str | None, port: int, peer_timeout: float, **others: Any
    ) -> Any:
        return command(ends=_ends(job, target, port, peer_timeout), **others)

    decorated: Any = with_ends
    for option in reversed(
        [
            click.option(
                "--job",
                type=click.Choice([SERVER, CLIENT]),
                help="Two hosts: this one's part. The server ends with its client.",
            ),
            click.option("--target", metavar="HOST:PORT", help="Two hosts: the client's server."),
            click.option(
                "--port",
                type=click.IntRange(1, 65535),
                default=DEFAULT_PORT,
                show_default=True,
                help="Two hosts: where the server waits, and what it measures there; it uses this "
                "port + 20000, too.",
            ),
            click.option(
                "--peer-timeout",
                type=Number(min=0, min_open=True),
                default=120.0,
                show_default=True,
                help="Two hosts: seconds to wait for the other.",
            ),
        ]
    ):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]
