"""Messages between a process and a task that it started: one JSON object per line, over pipes."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from typing import IO, Any

from tensorwire.errors import TensorwireError

Message = dict[str, Any]


class ChannelClosed(TensorwireError):
    """The other end has ended. The task's log shows why."""


class Channel:
    """The end of the process that started the task. Each message is answered before the next."""

    def __init__(self, stdin: IO[bytes] | None, stdout: IO[bytes] | None, name: str) -> None:
        """The task's standard input and output, which are pipes; `name` is for error messages."""
        if stdin is None or stdout is None:
            raise ValueError(f"{name} has no pipes")
        self._stdin = stdin
        self._stdout = stdout
        self._name = name
        self._buffer = b""

    def send(self, message: Message) -> None:
        """Sends a message. Raises ChannelClosed if the task has ended."""
        try:
            self._stdin.write(json.dumps(message).encode() + b"\n")
            self._stdin.flush()
        except OSError as error:
            raise ChannelClosed(f"{self._name} has ended: {error}") from error

    def receive(self, timeout_s: float) -> Message:
        """The next message.

        Raises:
            ChannelClosed: the task has ended, or sent something else than a message.
            TensorwireError: no answer within `timeout_s`, or the task reported an error
                (a message {"error": text}).
        """
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            self._read_some(deadline, timeout_s)
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise ChannelClosed(f"{self._name} sent an invalid message: {line[:80]!r}")
        if "error" in message:
            raise TensorwireError(f"{self._name}: {message['error']}")
        return message

    def _read_some(self, deadline: float, timeout_s: float) -> None:
        readable, _, _ = select.select(
            [self._stdout], [], [], max(0.0, deadline - time.monotonic())
        )
        if not readable:
            raise TensorwireError(f"{self._name} did not answer within {timeout_s:g} s")
        data = os.read(self._stdout.fileno(), 65536)
        if not data:
            raise ChannelClosed(f"{self._name} has ended")
        self._buffer += data

    def wait(self, timeout_s: float) -> bool:
        """Waits until `receive` can read data or the end of the stream; False after `timeout_s`."""
        return bool(self._buffer or select.select([self._stdout], [], [], timeout_s)[0])

    def request(self, message: Message, timeout_s: float) -> Message:
        """`send`, then `receive`."""
        self.send(message)
        return self.receive(timeout_s)


class TaskEnd:
    """The task's end. Create it first: all later output of the process goes to its log."""

    def __init__(self) -> None:
        self._input: IO[bytes] = os.fdopen(os.dup(0), "rb")
        self._output: IO[bytes] = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)
        sys.stdout = sys.stderr

    def receive(self) -> Message | None:
        """The next message, or None when the starter has closed its end."""
        line = self._input.readline()
        if not line:
            return None
        message: Message = json.loads(line)
        return message

    def send(self, message: Message) -> None:
        self._output.write(json.dumps(message).encode() + b"\n")
        self._output.flush()
