"""Interrupting a bench at any moment leaves no process, no file and no control group.

Network namespaces, their interfaces and listening ports need no check, because they end with the
processes.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from tensorwire.lab import cgroups

pytestmark = pytest.mark.newest

LAB = ["--lab", "hosts=2,rate=10gbit,cpus=2"] if os.geteuid() == 0 and cgroups.paths(1) else []
"""Empty if the lab cannot be made; then the benches are interrupted on loopback."""
BENCHES = [
    ["transfer", "--data-mb=1", "--iters=100000", *LAB],
    ["transfer", "--data-mb=1", "--iters=100000"],
    ["steps", "--iters=1000000", *LAB],
    ["serve", "--clients=4"],
    ["strategy", "--iters=100000"],
    ["rpc", "--rounds=1000", *LAB],
    ["tcp", "--rounds=1000"],
    ["train", "--steps=100000", *LAB],
]
LATEST_S = 8.0
"""Seconds in which all tasks start on an idle machine; on a busy one, the start is interrupted."""
MARK = "TENSORWIRE_TEST_MARK"


def marked(mark: str) -> dict[int, str]:
    """Processes with this mark in their environment, and their command lines."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes().split(b"\0"):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(process.name)] = command
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("arguments", BENCHES, ids=" ".join)
def test_an_interrupted_bench_leaves_nothing(
    tmp_path: Path, arguments: list[str], number: signal.Signals
) -> None:
    moment_s = random.Random(f"{arguments} {number}").uniform(0.3, LATEST_S)
    mark = uuid.uuid4().hex
    interfaces = set(Path("/sys/class/net").iterdir())
    bench = subprocess.Popen(
        [sys.executable, "-m", "tensorwire.cli.main", "bench", *arguments],
        env={**os.environ, MARK: mark, "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        time.sleep(moment_s)
        assert bench.poll() is None, "it ended before it was interrupted"
        os.killpg(bench.pid, number)  # as a terminal does
        try:
            _, said = bench.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            # Python loses an exception that is raised during a destructor, so the signal is
            # repeated.
            os.killpg(bench.pid, number)
            _, said = bench.communicate(timeout=60)
    finally:
        bench.kill()
        bench.wait(20)

    when = f"{number.name} after {moment_s:.1f} s"
    assert bench.returncode in (128 + number, -number), f"{when}: {said}"
    deadline = time.monotonic() + 30
    # If cleaning up was interrupted, too, the cleanup process finishes it.
    while (marked(mark) or list(tmp_path.iterdir())) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not marked(mark), when
    assert not list(tmp_path.rglob("*")), when
    assert not cgroups.sweep(), when
    assert set(Path("/sys/class/net").iterdir()) == interfaces
