"""The wheel of `make wheel` on a machine with only Debian and Python.

The machine is a separate root file system: no compiler, no headers, an unprivileged user and a
read-only home folder. pip installs the wheel and TensorFlow there. Run by `make wheel-test`; WHEEL
and MACHINE name the wheel and the unpacked Debian.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/train_server.py"
TENSORFLOWS = ("2.15.1", "2.18.1", "2.21.0")
USER = 10001
INSTALL_TIMEOUT_S = 900.0
JOB_TIMEOUT_S = 300.0
PASSED_ON = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")

pytestmark = pytest.mark.timeout(3 * INSTALL_TIMEOUT_S)

# Prints the plug-in that is used, and the import time in addition to TensorFlow's.
IMPORT = """
import time
import tensorflow
began = time.perf_counter()
import tensorwire.tf
print(time.perf_counter() - began)
from tensorwire.plugin import build
print(build.ensure_built())
"""


@dataclass(frozen=True)
class Machine:
    """A root file system; `/work` is the user's."""

    root: Path

    @contextmanager
    def started(self, command: str, **env: str) -> Iterator[subprocess.Popen[str]]:
        """Runs a shell command there, with own processes and mounts, which end with the block."""
        passed = {k: v for k, v in os.environ.items() if k.startswith("PIP_") or k in PASSED_ON}
        environment = {
            **passed,
            "HOME": "/home/user",
            "PATH": "/usr/bin:/bin",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            **env,
        }
        # chroot, because unshare applies --root after --mount-proc.
        inside = shlex.join(
            ["chroot", f"--userspec={USER}:{USER}", str(self.root), "env", "-i", "-C", "/work"]
            + [f"{name}={value}" for name, value in environment.items()]
            + ["sh", "-c", command]
        )
        mount = f"mount -t proc proc {shlex.quote(str(self.root))}/proc"
        with subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "sh", "-c", f"{mount} && exec {inside}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                yield process
            finally:
                # Not with unshare's --kill-child, because the change of user in chroot resets it.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def fails(self, command: str, **env: str) -> str:
        """The error output of a command that must fail."""
        with self.started(command, **env) as process:
            _, errors = process.communicate(timeout=JOB_TIMEOUT_S)
        assert process.returncode == 1, errors
        return errors

    def run(self, command: str, timeout_s: float = JOB_TIMEOUT_S, **env: str) -> str:
        """The output of a command that must succeed."""
        with self.started(command, **env) as process:
            output, errors = process.communicate(timeout=timeout_s)
        assert process.returncode == 0, f"{command}: {errors}"
        return output

    def install(self, venv: str, *packages: str) -> None:
        self.run(
            f"test -d {venv} || python3 -m venv {venv}; "
            f"{venv}/bin/pip install --quiet --no-cache-dir {' '.join(packages)}",
            INSTALL_TIMEOUT_S,
        )

    def trains(self, venv: str) -> None:
        """Trains 300 steps with a ps and a worker."""
        ports = free_ports(2)
        cluster = {"ps": [f"127.0.0.1:{ports[0]}"], "worker": [f"127.0.0.1:{ports[1]}"]}

        def config(job: str) -> str:
            return json.dumps({"cluster": cluster, "task": {"type": job, "index": 0}})

        with self.started(f"{venv}/bin/python /work/job.py", TF_CONFIG=config("ps")) as ps:
            told = self.run(f"{venv}/bin/python /work/job.py", TF_CONFIG=config("worker"))
            assert ps.poll() is None
        assert told.startswith("loss 0.0"), told
        assert int(told.split()[-4]) > 100_000, told  # bytes on grpc++


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="module")
def wheel() -> str:
    return Path(os.environ["WHEEL"]).name


@pytest.fixture(scope="module")
def machine(wheel: str) -> Iterator[Machine]:
    root = Path(os.environ["MACHINE"])
    work = root / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    shutil.copy(os.environ["WHEEL"], work / wheel)
    shutil.copy(EXAMPLE, work / "job.py")
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    shutil.copy("/etc/hosts", root / "etc/hosts")
    if CERTIFICATES.exists():
        target = root / CERTIFICATES.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CERTIFICATES, target)
    (root / "home/user").mkdir(mode=0o555, exist_ok=True)
    os.chown(work, USER, USER)
    yield Machine(root)
    shutil.rmtree(work)


def test_the_machine_has_no_compiler_and_no_home_folder(machine: Machine) -> None:
    found = machine.run("which gcc g++ cc c++ clang make; ls /usr/include; touch ~/x; id -u")
    assert found.split() == [str(USER)]


def test_each_tensorflow_trains_and_an_upgrade_needs_nothing(machine: Machine, wheel: str) -> None:
    machine.install("/work/one", f"/work/{wheel}")
    for version in TENSORFLOWS:
        machine.install("/work/one", f"tensorflow-cpu=={version}")
        seconds, library = machine.run("/work/one/bin/python -c " + shlex.quote(IMPORT)).split()
        print(f"TensorFlow {version}: imported in {float(seconds) * 1000:.0f} ms beside its own")
        assert "/_native/prebuilt/" in library
        machine.trains("/work/one")
        listed = machine.run("/work/one/bin/tensorwire build --list")
        assert f"TensorFlow {version} in /work/one" in listed
        assert f"tensorflow-cpu {version}" in next(
            line for line in listed.splitlines() if line.endswith("<- fits")
        )
    assert machine.run("find /work -name '*.lock'") == ""


def test_two_environments_train_at_once(machine: Machine, wheel: str) -> None:
    machine.install("/work/two", f"/work/{wheel}", f"tensorflow-cpu=={TENSORFLOWS[0]}")
    with ThreadPoolExecutor() as pool:
        list(pool.map(machine.trains, ("/work/one", "/work/two")))


def test_eight_processes_import_at_once(machine: Machine) -> None:
    command = "/work/one/bin/python -c " + shlex.quote(IMPORT)
    with ExitStack() as stack:
        processes = [stack.enter_context(machine.started(command)) for _ in range(8)]
        ended = [process.communicate(timeout=JOB_TIMEOUT_S) for process in processes]
    assert [process.returncode for process in processes] == [0] * 8, ended
    assert len({output.split()[1] for output, _ in ended}) == 1


def test_an_image_without_headers_trains(machine: Machine) -> None:
    # As in the Dockerfile.
    headers = "/work/one/lib/python3*/site-packages/tensorflow/include"
    machine.run(f"find {headers} -mindepth 1 -delete")
    machine.trains("/work/one")


def test_a_tensorflow_with_other_headers_is_told_what_there_is(machine: Machine) -> None:
    record = f"lib/python3*/site-packages/tensorflow_cpu-{TENSORFLOWS[0]}.dist-info/RECORD"
    header = "tensorflow.include.tensorflow.core.framework.op_kernel.h"
    machine.run(f"sed -i 's/^\\({header},sha256=\\)./\\1_/' /work/two/{record}")
    said = machine.fails("/work/two/bin/tensorwire build")
    assert len(said.splitlines()) == 1
    assert f"TensorFlow {TENSORFLOWS[0]} in /work/two" in said
    assert "apt-get install g++" in said
    for version in TENSORFLOWS:
        assert f"tensorflow-cpu {version}" in said


def test_what_is_left_aside_is_said(machine: Machine) -> None:
    said = machine.fails("/work/one/bin/tensorwire build", TENSORWIRE_PREBUILT="0")
    assert len(said.splitlines()) == 1
    assert "TENSORWIRE_PREBUILT=0" in said
    assert "apt-get install g++" in said
