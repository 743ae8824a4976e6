"""The process of every task: `python -m tensorwire.bench.frame.task_host MODULE:CLASS`.

The class is a `HostedTask`. The process that started this one sends JSON messages (`lab.channel`):
first the task's setup, then {"do": the name of a request, and its arguments}. A TensorwireError or
an error of TensorFlow is answered by {"error": text} and ends the process with status 1. Any other
error ends it with a traceback in the log. The process also ends at once when the channel is closed.
"""

from __future__ import annotations

import importlib
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from tensorwire.bench.frame.tasks import HostedTask
from tensorwire.bench.lab.channel import Message, TaskEnd
from tensorwire.dataclass_json import arguments_of
from tensorwire.errors import TensorwireError


def task_type(name: str) -> type[HostedTask]:
    """The class that MODULE:CLASS names.

    Raises:
        ValueError: `name` is not the name of a HostedTask.
    """
    module, _, class_name = name.partition(":")
    found = getattr(importlib.import_module(module), class_name, None)
    if not (isinstance(found, type) and issubclass(found, HostedTask)):
        raise ValueError(f"{name} is not a task")
    return found


def answers(task: HostedTask, message: Message) -> Iterator[Message]:
    """Yields the answers to a request as the task makes them.

    Raises:
        ValueError, TypeError: the task has no such request, or it takes other arguments.
    """
    fields = dict(message)
    name = fields.pop("do", None)
    method: Callable[..., Any] | None = getattr(task, str(name), None)
    if not getattr(method, "is_request", False) or method is None:
        raise ValueError(f"{type(task).__name__} has no request {name!r}")
    answer = method(**arguments_of(method, fields))
    if isinstance(answer, dict):
        yield answer
    else:
        yield from answer


def first_line(error: Any) -> str:
    """The first line of a TensorFlow error, which is the useful part for a user."""
    # A session prepends the script lines that made the node; the context has the original error.
    while hasattr(error.__context__, "message"):
        error = error.__context__
    # TensorFlow prints a line of "=" above errors of several tasks.
    lines = [line.strip() for line in str(error.message).splitlines() if line.strip(" =")]
    return lines[0] if lines else type(error).__name__


def _read(end: TaskEnd, messages: queue.SimpleQueue[Message]) -> None:
    while (message := end.receive()) is not None:
        messages.put(message)
    os._exit(0)  # threads of TensorFlow may wait for tasks that have ended


def _serve(end: TaskEnd, name: str) -> None:
    messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(end, messages), daemon=True).start()
    setup = messages.get()
    kind = task_type(name)
    task = kind(**arguments_of(kind.__init__, setup))
    end.send(task.ready())
    while True:
        for answer in answers(task, messages.get()):
            end.send(answer)


def main(name: str) -> None:
    end = TaskEnd()
    try:
        _serve(end, name)
    except TensorwireError as error:
        traceback.print_exc()
        end.send({"error": str(error)})
    except Exception as error:
        traceback.print_exc()
        if hasattr(error, "error_code"):  # TensorFlow's
            end.send({"error": f"{type(error).__name__}: {first_line(error)}"})
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
