"""The effect of a terminating signal on a measurement."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def end_in_order() -> None:
    """Makes SIGTERM and SIGHUP end this process as Ctrl-C does, after what it started has ended.

    Not for commands that run a user's script, whose process belongs to the script.
    """
    owner = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:
            # A fork of this process, as pyroute2 makes and ends them: what was started is not its.
            os._exit(128 + number)
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP, and means it
            signal.signal(number, end)
