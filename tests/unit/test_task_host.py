"""The process of a task: its answers, and its end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorwire.bench.frame.task_host import answers, task_type
from tensorwire.bench.frame.tasks import TaskProcesses, host_argv
from tensorwire.bench.lab import LocalCluster
from tensorwire.bench.lab.channel import Message
from tensorwire.errors import TensorwireError

TASK = """
import os, time
from tensorwire.errors import TensorwireError
from tensorwire.bench.frame.tasks import HostedTask, request

class Adder(HostedTask):
    def __init__(self, start: int) -> None:
        self.total = start
    def ready(self):
        return {"pid": os.getpid()}
    @request
    def add(self, number: int):
        self.total += number
        return {"total": self.total}
    @request
    def count(self, to: int):
        for number in range(to):
            yield {"number": number}
    @request
    def refuse(self):
        raise TensorwireError("there is no such thing")
    @request
    def sleep(self):
        time.sleep(600)
    def secret(self):
        return {}
"""


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[TaskProcesses]:
    (tmp_path / "adder.py").write_text(TASK)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    with TaskProcesses(LocalCluster({"adder": 1})) as tasks:
        argv = host_argv("adder:Adder")
        started = tasks.cluster.start("adder", 0, argv, {"PYTHONPATH": path}, channel=True)
        tasks.processes["adder:0"] = started
        tasks.send("adder", {"start": 40})
        assert tasks.answer("adder", 60.0)["pid"] == started.pid
        yield tasks


def test_requests_are_answered_one_by_one_and_some_by_several_messages(
    tasks: TaskProcesses,
) -> None:
    assert tasks.ask("adder", "add", number=2) == {"total": 42}
    assert tasks.ask("adder", "count", to=2) == {"number": 0}
    assert tasks.answer("adder", 60.0) == {"number": 1}


def test_an_error_that_a_user_can_mend_is_answered_and_ends_the_task(tasks: TaskProcesses) -> None:
    with pytest.raises(TensorwireError, match="adder:0: there is no such thing"):
        tasks.ask("adder", "refuse")
    assert tasks.process("adder").process.wait(60) == 1


@pytest.mark.parametrize(
    "message",
    [
        {"do": "secret"},
        {"do": "__init__", "start": 1},
        {"do": "add", "number": "2"},
        {"do": "add", "other": 2},
        {"do": "add"},
        {},
    ],
    ids=str,
)
def test_a_request_that_the_task_does_not_take_ends_it(
    tasks: TaskProcesses, message: Message
) -> None:
    with pytest.raises(TensorwireError, match=r"adder:0 ended with exit status 1(?s:.*)Error"):
        tasks.send("adder", message)
        tasks.answer("adder", 60.0)


def test_a_task_ends_with_its_starter_whatever_it_does(tasks: TaskProcesses) -> None:
    started = tasks.process("adder")
    started.channel.send({"do": "sleep"})
    assert started.process.stdin is not None
    started.process.stdin.close()
    assert started.process.wait(60) == 0


def test_only_a_task_is_hosted() -> None:
    with pytest.raises(ValueError, match="is not a task"):
        task_type("pathlib:Path")


def test_a_request_of_no_task_is_refused() -> None:
    task = task_type("tensorwire.bench.experiments.tcp:MemcpyTask")(message_size=8)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="has no request 'ready'"):
        list(answers(task, {"do": "ready"}))
    (copied,) = answers(task, {"do": "run", "iters": 3})
    assert len(copied["step_s"]) == 3
