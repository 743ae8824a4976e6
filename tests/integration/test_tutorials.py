"""The tutorials' commands, run from top to bottom as a reader would."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tensorwire.lab.ports import PortLease
from tensorwire.metrics.observed_job import FOLDER_VARIABLE

pytestmark = [pytest.mark.newest, pytest.mark.slow, pytest.mark.timeout(600)]

TUTORIALS = Path(__file__).parents[2] / "docs/tutorials"
_COMMANDS = re.compile(r"^```bash\n(.*?)^```", re.DOTALL | re.MULTILINE)
_PORT = re.compile(r"127\.0\.0\.1:(\d+)")


def commands(page: Path, ports: PortLease) -> str:
    """All commands of a tutorial as one script, with free ports in place of its own."""
    script = "".join(_COMMANDS.findall(page.read_text()))
    free = {port: ports.take() for port in _PORT.findall(script)}
    return _PORT.sub(lambda match: f"127.0.0.1:{free[match[1]]}", script)


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("page", sorted(TUTORIALS.glob("*.md")), ids=lambda page: page.stem)
def test_every_command_of_a_tutorial_works(page: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        FOLDER_VARIABLE: str(tmp_path),  # the doctor sees no other test's tasks
    }
    ports = PortLease()
    shell = subprocess.Popen(
        ["bash", "-e", "-c", commands(page, ports)],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = shell.communicate(timeout=500)
    finally:
        # Tasks that a failed command left.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        ports.release()
    assert shell.returncode == 0, said
    assert len(re.findall(r"^\d+ steps a second", said, re.MULTILINE)) == 3
