"""Removes what a cluster or a lab left behind when the process that owned it is gone.

Run as a script, alone: `cleanup_process.py LEGACY`. Only the owner holds the other end of the pipe
that is its standard input. LEGACY is JSON: {"token": text or null, "directory": path or null,
"cgroups": [paths]}. A byte on the pipe means that the owner has cleaned up itself. If the pipe ends
without one, the owner has died, and this process cleans up.

A parent-death signal would not do: it reaches only direct children, fires when the *thread* that
started them ends, and has to be set between fork and exec. A token in the environment reaches every
descendant, one that moved to a session of its own too.

Only the standard library, and little of it: this starts beside every cluster.
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
                if pid != "0":  # of another container, unknown here; to kill it means to kill us
                    os.kill(int(pid), signal.SIGKILL)
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError:  # a process that was killed is not gone at once
            time.sleep(0.02)


def main(legacy: str) -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    wanted = json.loads(legacy)
    if os.read(0, 1):
        return
    if wanted["token"] is not None:
        kill_all(wanted["token"])
        # The owner may have died between fork and exec, when a child does not carry the token yet.
        time.sleep(0.2)
        kill_all(wanted["token"])
    for path in wanted["cgroups"]:
        remove_cgroup(Path(path))
    if wanted["directory"] is not None:
        shutil.rmtree(wanted["directory"], ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
