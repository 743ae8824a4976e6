"""Signals that end this process, where a library would lose them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """What would end this process by an exception does so at the end of the block.

    For a moment only, around code that forks, or runs callbacks in which exceptions vanish.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # exceptions of signals are the main thread's
        return
    owner = os.getpid()
    heard: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        if os.getpid() == owner:
            heard.append(number)
        elif number != signal.SIGINT:  # a fork; at a terminal it gets its owner's Ctrl-C, too
            os._exit(128 + number)

    handlers = {number: signal.getsignal(number) for number in _ENDING}
    ours = {number: handler for number, handler in handlers.items() if callable(handler)}
    try:
        for number in ours:
            signal.signal(number, hear)
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
        if heard:
            signal.raise_signal(heard[0])
