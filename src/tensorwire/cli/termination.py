"""The effect of a terminating signal on a measurement."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def end_in_order() -> None:
    """Makes SIGTERM and SIGHUP act as Ctrl-C: the process first ends all that it started.

    Not for commands that run a user's script, which may handle these signals itself.
    """
    owner = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:
            # This is a fork, such as pyroute2 makes and ends. It does not own what its parent
            # started.
            os._exit(128 + number)
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup makes SIGHUP ignored; keep that
            signal.signal(number, end)
