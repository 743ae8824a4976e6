"""Runs the commands of a document as one script."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def run_script(
    script: str, folder: Path, variables: Mapping[str, str], timeout_s: float
) -> tuple[int, str]:
    """Runs a bash script until a command fails, with this Python's commands in PATH.

    Ends all processes that the script started. `variables` are added to this process's environment.
    Returns the exit status and the output.
    """
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shell = subprocess.Popen(
        ["bash", "-e", "-c", script],
        cwd=folder, env={**os.environ, "PATH": path, **variables},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = shell.communicate(timeout=timeout_s)
    finally:
        # Ends tasks that a failed command left.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
    return shell.returncode, said
