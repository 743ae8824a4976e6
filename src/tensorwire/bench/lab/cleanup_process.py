"""Removes what a cluster or a lab left behind if its owner was killed.

Run as a stand-alone script: `cleanup_process.py LEGACY`. Standard input is a pipe whose other end
only the owner holds. LEGACY is JSON: {"token": text or null, "directory": path or null,
"cgroups": [paths]}. A byte on the pipe means that the owner has cleaned up. If the pipe ends
without a byte, the owner has died, and this process cleans up.

A parent-death signal is not enough: it reaches only direct children, is sent when the *thread* that
started them ends, and must be set between fork and exec. A token in the environment reaches every
descendant, including those in their own session.

Imports little, and only from the standard library, because it starts with every cluster.
"""

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

TOKEN_VARIABLE = "TENSORWIRE_LAB"
_SWEEP_DEADLINE_S = 5.0


def processes_with(token: str) -> list[int]:
    """Process ids of this user whose environment carries `token` in TENSORWIRE_LAB."""
    wanted = token.encode()
    variable = TOKEN_VARIABLE.encode() + b"="
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # ended meanwhile, or another user's
            environment = (process / "environ").read_bytes().split(b"\0")
            if any(entry.startswith(variable) and wanted in entry for entry in environment):
                found.append(int(process.name))
    return found


def kill_all(token: str) -> None:
    """Kills until no process carries `token`, for at most five seconds."""
    deadline = time.monotonic() + _SWEEP_DEADLINE_S
    while (pids := processes_with(token)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def remove_cgroup(path: Path) -> None:
    """Kills the processes of a control group and removes it, within five seconds."""
    deadline = time.monotonic() + _SWEEP_DEADLINE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            for pid in (path / "cgroup.procs").read_text().split():
                if pid != "0":  # another container's process; kill(0) means this process group
                    os.kill(int(pid), signal.SIGKILL)
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError:  # a killed process takes a moment to disappear
            time.sleep(0.02)


def main(legacy: str) -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    wanted = json.loads(legacy)
    if os.read(0, 1):
        return
    if wanted["token"] is not None:
        kill_all(wanted["token"])
        # If the owner died between fork and exec, a child gets the token only now.
        time.sleep(0.2)
        kill_all(wanted["token"])
    for path in wanted["cgroups"]:
        remove_cgroup(Path(path))
    if wanted["directory"] is not None:
        shutil.rmtree(wanted["directory"], ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
