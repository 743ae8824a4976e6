"""Runs a command on a host: `enter.py PLACE COMMAND ARGUMENTS…`.

PLACE is JSON: {"namespaces": [paths], "cgroup": path or null}. A stand-alone script that uses only
the standard library, because it runs before every task of a lab and then becomes that task.
"""

import ctypes
import json
import os
import sys
from pathlib import Path


def main(place: str, argv: list[str]) -> None:
    wanted = json.loads(place)
    directory = Path.cwd()
    if wanted["cgroup"] is not None:
        Path(wanted["cgroup"], "cgroup.procs").write_text(str(os.getpid()))
    libc = ctypes.CDLL(None, use_errno=True)
    # Open all before entering the first, because paths may mean something else inside.
    descriptors = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in wanted["namespaces"]]
    for descriptor in descriptors:
        if libc.setns(descriptor, 0) != 0:
            raise OSError(ctypes.get_errno(), "cannot enter a host of the lab")
    # Entering a mount namespace changes the working directory to its root.
    os.chdir(directory)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.exit(f"{argv[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
