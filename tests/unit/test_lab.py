"""A LocalCluster's ports, logs, errors and timeouts, and its cleaning up."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from processes import is_running, wait_gone
from tensorwire.bench.lab import LocalCluster, cleanup_process
from tensorwire.bench.lab.channel import ChannelClosed
from tensorwire.bench.lab.network import held_back
from tensorwire.bench.lab.ports import PortLease
from tensorwire.cluster import data_port
from tensorwire.errors import TensorwireError
from waiting import wait_until

SLEEPER = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]


@pytest.fixture(autouse=True)
def logs_in_the_tests_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


def script(text: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(text)]


def ports_of(cluster: LocalCluster) -> list[int]:
    return [int(a.rpartition(":")[2]) for addresses in cluster.spec.values() for a in addresses]


def test_spec_names_one_loopback_address_for_each_task() -> None:
    with LocalCluster({"ps": 2, "worker": 3}) as cluster:
        pass
    assert {job: len(addresses) for job, addresses in cluster.spec.items()} == {
        "ps": 2,
        "worker": 3,
    }
    assert all(a.startswith("127.0.0.1:") for job in cluster.spec.values() for a in job)


def test_ports_and_their_data_ports_are_free_and_never_handed_out_twice() -> None:
    with contextlib.ExitStack() as stack:
        jobs = {"ps": 20, "worker": 20}
        clusters = [stack.enter_context(LocalCluster(jobs)) for _ in range(2)]
        ports = [port for cluster in clusters for port in ports_of(cluster)]
        both = ports + [data_port(port) for port in ports]
        assert len(set(both)) == 160
        for port in both:
            with socket.socket() as probe:
                probe.bind(("", port))


def test_a_port_whose_data_port_is_taken_is_not_handed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lease = PortLease()
    blocked, free = lease.take(), lease.take()
    lease.release()
    with socket.socket() as other:
        other.bind(("127.0.0.1", data_port(blocked)))
        monkeypatch.setattr("tensorwire.bench.lab.ports._CANDIDATES", [blocked, free])
        with LocalCluster({"ps": 1}) as cluster:
            assert ports_of(cluster) == [free]
        with pytest.raises(TensorwireError, match="no free pair of ports"):
            LocalCluster({"ps": 2})


def test_another_process_does_not_get_the_same_ports() -> None:
    with LocalCluster({"ps": 1}) as cluster:
        (port,) = ports_of(cluster)
        code = script(
            f"""
            from tensorwire.bench.lab import ports
            ports._CANDIDATES = [{port}]
            ports.PortLease().take()
            """
        )
        other = subprocess.run(code, check=False, capture_output=True, text=True, timeout=30)
    assert "no free pair of ports" in other.stderr


def test_wait_returns_when_tasks_end_well_and_the_directory_goes(tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    with LocalCluster({"worker": 2}) as cluster:
        directory = cluster.directory
        tasks = [
            cluster.start("worker", 0, script("print('hello')"), stdout=out),
            cluster.start("worker", 1, script("print('in the log')")),
        ]
        cluster.wait(tasks, 30)
        assert "in the log" in tasks[1].tail()
        assert not cluster.failed()
    assert out.read_text() == "hello\n"
    assert not directory.exists()


def test_wait_names_the_task_that_died_and_shows_its_last_words() -> None:
    with pytest.raises(TensorwireError) as caught, LocalCluster({"ps": 1, "worker": 1}) as cluster:
        ps = cluster.start("ps", 0, script("raise SystemExit('the disk is full')"))
        worker = cluster.start("worker", 0, SLEEPER)
        cluster.wait([worker], 30)
    message = str(caught.value)
    assert "ps:0 ended with exit status 1" in message
    assert "the disk is full" in message
    assert str(ps.log) in message and ps.log.exists()
    assert not wait_gone([worker.pid])


def test_a_task_killed_by_a_signal_is_reported_by_its_name() -> None:
    with (
        pytest.raises(TensorwireError, match="worker:0 ended with signal SIGSEGV"),
        LocalCluster({"worker": 1}) as cluster,
    ):
        task = cluster.start(
            "worker", 0, script("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
        )
        cluster.wait([task], 30)


def test_wait_ends_at_its_deadline() -> None:
    with LocalCluster({"worker": 1}) as cluster:
        task = cluster.start("worker", 0, SLEEPER)
        begin = time.monotonic()
        with pytest.raises(TensorwireError, match=r"worker:0 did not end within 0.3 s"):
            cluster.wait([task], 0.3)
        assert time.monotonic() - begin < 5
    assert not wait_gone([task.pid])


def test_a_stopped_task_has_not_failed_and_may_start_again() -> None:
    with LocalCluster({"ps": 1}) as cluster:
        first = cluster.start("ps", 0, SLEEPER)
        with pytest.raises(ValueError, match="ps:0 is running"):
            cluster.start("ps", 0, SLEEPER)
        first.stop()
        assert first.poll() == -signal.SIGKILL
        cluster.check()
        second = cluster.start("ps", 0, script("print('again')"))
        cluster.wait([second], 30)
        assert second.log != first.log
        assert second.address == first.address


def test_a_program_that_does_not_exist_is_one_clear_error() -> None:
    with (
        pytest.raises(TensorwireError, match=r"cannot start worker:0.*no-such-program"),
        LocalCluster({"worker": 1}) as cluster,
    ):
        cluster.start("worker", 0, ["no-such-program"])


def test_tasks_see_the_environment_given_and_quiet_tensorflow_logs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    monkeypatch.setenv("PYTHONPATH", f"/inherited{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    show = script(
        "import os; e = os.environ; print(e['TF_CPP_MIN_LOG_LEVEL'], e['OURS'], e['PYTHONPATH'])"
    )
    with LocalCluster({"worker": 2}) as cluster:
        quiet = cluster.start("worker", 0, show, env={"OURS": "yes"})
        loud = cluster.start("worker", 1, show, env={"OURS": "no", "TF_CPP_MIN_LOG_LEVEL": "0"})
        cluster.wait([quiet, loud], 30)
        assert quiet.tail().startswith("2 yes /inherited")
        assert loud.tail().startswith("0 no")


def test_a_task_that_ignores_sigterm_and_its_escaped_child_are_killed() -> None:
    stubborn = script(
        """
        import signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(
            [sys.executable, "-S", "-c", "import time; time.sleep(60)"], start_new_session=True
        )
        print(child.pid, flush=True)
        time.sleep(60)
        """
    )
    with LocalCluster({"worker": 1}) as cluster:
        task = cluster.start("worker", 0, stubborn)
        wait_until(task.tail, 30)
        child = int(task.tail())
        assert is_running(child)
    assert not wait_gone([task.pid, child], 1.0)


def test_a_channel_carries_messages_both_ways_and_prints_go_to_the_log() -> None:
    echo = script(
        """
        from tensorwire.bench.lab.channel import TaskEnd
        end = TaskEnd()
        print("to the log")
        while (message := end.receive()) is not None:
            if message.get("fail"):
                end.send({"error": "asked to fail"})
            else:
                end.send({"echo": message})
        """
    )
    with LocalCluster({"worker": 1}) as cluster:
        task = cluster.start("worker", 0, echo, channel=True)
        assert task.channel.request({"n": 1}, 30) == {"echo": {"n": 1}}
        with pytest.raises(TensorwireError, match="worker:0: asked to fail"):
            task.channel.request({"fail": True}, 30)
        assert task.tail() == "to the log"
        task.stop()
        with pytest.raises(ChannelClosed):
            task.channel.request({"n": 2}, 30)


def test_a_channel_has_a_deadline() -> None:
    with LocalCluster({"worker": 1}) as cluster:
        task = cluster.start("worker", 0, SLEEPER, channel=True)
        with pytest.raises(TensorwireError, match=r"worker:0 did not answer within 0.2 s"):
            task.channel.receive(0.2)


PARENT = """
    import sys, time
    from tensorwire.bench.lab import LocalCluster
    child = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    with LocalCluster({"ps": 1, "worker": 1}) as cluster:
        tasks = [cluster.start("ps", 0, child), cluster.start("worker", 0, child)]
        print(*[task.pid for task in tasks], cluster.directory, flush=True)
        cluster.wait(tasks, 60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_and_no_file_survive_a_signal_to_the_parent(number: signal.Signals) -> None:
    with subprocess.Popen(
        script(PARENT), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        assert parent.stdout is not None
        first, second, directory = parent.stdout.readline().split()
        pids = [int(first), int(second)]
        assert all(is_running(pid) for pid in pids)
        parent.send_signal(number)
        parent.wait(15)
    assert not wait_gone(pids)
    wait_until(lambda: not Path(directory).exists(), 30)


def test_a_process_without_the_token_is_none_of_the_guards_business() -> None:
    with subprocess.Popen(SLEEPER) as bystander:
        with LocalCluster({"worker": 1}) as cluster:
            cluster.start("worker", 0, SLEEPER)
        assert is_running(bystander.pid)
        bystander.kill()
    assert cleanup_process.processes_with("no-such-token") == []


def test_a_signal_that_is_held_back_is_heard_at_the_end_of_the_block() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), held_back():
        signal.raise_signal(signal.SIGINT)
        done.append("the rest")
    assert done == ["the rest"]
    with pytest.raises(KeyboardInterrupt), held_back():
        signal.raise_signal(signal.SIGINT)
        raise OSError("what a library makes of an interruption")
