"""Options of a measurement between two hosts: --job server on one, --job client on the other."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from tensorwire.cli.click_extensions import refuse_unused, takes
from tensorwire.cluster import split_address
from tensorwire.errors import UsageError
from tensorwire.options import option

_TWO = "is for two hosts: give --job server, or --job client --target HOST:PORT, too"
SERVER, CLIENT = "server", "client"
DEFAULT_PORT = 12222


@dataclass(frozen=True)
class TwoEnds:
    """The options for this host's part in a measurement between two hosts."""

    SECTIONS: ClassVar = {"Two hosts": ("job", "target", "port", "timeout_s")}

    job: str | None = option(
        None, "Role of this host. The server ends with its client.", choices=(SERVER, CLIENT)
    )
    """SERVER, CLIENT, or None: both ends run here."""
    target: str | None = option(None, "Address of the server, for the client.", metavar="HOST:PORT")
    port: int = option(
        DEFAULT_PORT,
        "Port of the server; what is measured uses the ports above it, and those + 20000.",
        least=1,
        most=65535,
    )
    timeout_s: float = option(
        120.0, "Seconds to wait for the other host.", name="--timeout", above=0
    )

    def __post_init__(self) -> None:
        if (self.job == CLIENT) != (self.target is not None):
            raise UsageError(
                "two hosts need --job server on one and --job client --target HOST:PORT on the "
                "other"
            )
        if self.target is not None:
            split_address(self.target)


def two_ends_options(command: Callable[..., Any]) -> Any:
    """--job, --target, --port and --timeout; the command gets them as `ends`."""

    @functools.wraps(command)
    def with_ends(*, ends: TwoEnds, **others: Any) -> Any:
        if ends.job is None:
            refuse_unused(_TWO, "port", "timeout_s")
        return command(ends=ends, **others)

    return takes(TwoEnds, "ends")(with_ends)
