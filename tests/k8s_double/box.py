"""Runs rendered manifests on this machine, as Kubernetes would run them in a cluster.

A pod is a host of the lab with its own network, file system and names; a container is a process
there, with the environment, mounts and command of its manifest; the image is this machine. Restart
policies, sidecars, and the counts of Jobs are obeyed. Which node a pod is on, the scheduler of the
unit tests says. Jobs are kept by the API server of the unit tests, which keepers ask over TLS.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

import tensorwire
from tensorwire.k8s.render import Manifest
from tensorwire.lab import Host, HostSettings, Lab, LabSettings, LocalCluster, Task
from tensorwire.plugin.paths import cache_folder

from .api_server import ApiServer
from .jobs import by_kind, jobs_of, pods_of, task_container
from .scheduler import Node, schedule

_ACCOUNT = "secrets/kubernetes.io/serviceaccount"
_API_PORT = 6443
_POLL_S = 0.1
# A source may be under /tmp, so that comes last.
_MOUNT = """set -e
while [ "$1" != -- ]; do mount --rbind "$1" "$2"; shift 2; done
shift
cd "$1"
shift
exec "$@"
"""


@dataclass
class BoxPod:
    """A pod that is to run, runs, or has ended."""

    name: str
    job: str
    member: int
    spec: Mapping[str, Any]
    host: Host
    retries: int
    task: Task | None = None
    keeper: Task | None = None
    restarts: int = 0
    ended: bool = False

    @property
    def is_sidecar(self) -> bool:
        return "initContainers" in self.spec


class Box:
    """A context manager; `run` lets time go on until every pod has ended."""

    def __init__(
        self, documents: Sequence[Manifest], folder: Path, claims: Mapping[str, Path]
    ) -> None:
        self._documents = documents
        self._folder = folder
        self._claims = claims
        self._stack = contextlib.ExitStack()
        self.api = ApiServer()
        self.pods: list[BoxPod] = []
        self.nodes: dict[str, set[str]] = {}
        """The tasks on each node, by their stable names."""

    def __enter__(self) -> Box:
        with contextlib.ExitStack() as stack:
            pods = pods_of(self._documents)
            self._place(len(pods))
            lab = stack.enter_context(Lab(LabSettings((HostSettings(),) * (len(pods) + 1))))
            if not lab.has_network or shutil.which("openssl") is None:
                pytest.skip(f"pods need a network of their own and openssl: {lab.notes}")
            *hosts, api_host = lab.hosts
            self._write_files([pod.name for pod in pods], hosts, api_host)
            stack.enter_context(self._serve_api(api_host))
            of_job = {f"pod-{i}": [host] for i, host in enumerate(hosts)}
            keepers = {f"keeper-{i}": [host] for i, host in enumerate(hosts)}
            self._cluster = stack.enter_context(
                LocalCluster(dict.fromkeys([*of_job, *keepers], 1), {**of_job, **keepers})
            )
            self._submit(hosts)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.__exit__(exception_type, exception, traceback)

    def pod(self, name: str) -> BoxPod:
        return next(pod for pod in self.pods if pod.name == name)

    def log(self, name: str) -> str:
        """What the newest container of a pod has printed."""
        task = self.pod(name).task
        return task.log.read_text(errors="replace") if task is not None else ""

    def logs(self) -> str:
        """The last lines of all pods, for an error."""
        return "\n".join(f"--- {p.name}\n{p.task.tail() if p.task else ''}" for p in self.pods)

    def get(self, name: str, port: int, path: str) -> bytes:
        """What a pod serves there over HTTP."""
        host = self.pod(name).host

        def ask() -> bytes:
            connection = http.client.HTTPConnection(host.address, port, timeout=10)
            connection.request("GET", path)
            return connection.getresponse().read()

        answer = _in_namespace(host.namespaces[0], ask)
        assert isinstance(answer, bytes)
        return answer

    def kill(self, name: str) -> None:
        """As if the kernel had killed the task's container."""
        task = self.pod(name).task
        assert task is not None
        task.stop()

    def run(self, until: Any, timeout_s: float) -> None:
        """Lets kubelets and controllers do their work until `until()` holds."""
        deadline = time.monotonic() + timeout_s
        while not until():
            for pod in self.pods:
                self._sync(pod)
            self._end_jobs()
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {timeout_s:g} s:\n{self.logs()}")
            time.sleep(_POLL_S)

    @property
    def all_ended(self) -> bool:
        return all(pod.ended for pod in self.pods)

    def _place(self, most_nodes: int) -> None:
        nodes = [Node(f"node-{i}") for i in range(most_nodes)]
        assert schedule(pods_of(self._documents), nodes) == []
        self.nodes = {n.name: {pod.name for pod in n.pods} for n in nodes if n.pods}

    def _write_files(self, names: Sequence[str], hosts: Sequence[Host], api: Host) -> None:
        """The config map, the service's names, and a service account, as files."""
        etc = self._folder / "etc"
        shutil.copytree("/etc", etc, symlinks=True, ignore=lambda folder, _: _unreadable(folder))
        lines = ["127.0.0.1 localhost", f"{api.address} kubernetes"]
        for name, host in zip(names, hosts, strict=True):
            lines.append(f"{host.address} {name} {name.partition('.')[0]}")
        (etc / "hosts").unlink(missing_ok=True)
        (etc / "hosts").write_text("\n".join(lines) + "\n")
        (etc / "tensorwire").mkdir()
        (self._config,) = by_kind(self._documents, "ConfigMap")
        for key, text in self._config["data"].items():
            (etc / "tensorwire" / key).write_text(text)
        account = self._folder / "run" / _ACCOUNT
        account.mkdir(parents=True)
        (account / "token").write_text("secret")
        subject = ("-subj", "/CN=kubernetes", "-addext", f"subjectAltName=IP:{api.address}")
        new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        files = ("-keyout", str(self._folder / "key"), "-out", str(account / "ca.crt"))
        subprocess.run(
            ["openssl", "req", "-x509", "-days", "2", *new_key, *subject, *files],
            check=True,
            capture_output=True,
            timeout=60,
        )

    def _serve_api(self, host: Host) -> contextlib.AbstractContextManager[Path]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        account = self._folder / "run" / _ACCOUNT
        context.load_cert_chain(account / "ca.crt", self._folder / "key")
        listener = _listen(host.namespaces[0], host.address, _API_PORT)
        self._api_address = host.address
        return self.api.serve(self._folder, context.wrap_socket(listener, server_side=True))

    def _submit(self, hosts: Sequence[Host]) -> None:
        left = iter(hosts)
        for job in jobs_of(self._documents):
            with self.api.lock:
                self.api.create_or_apply(
                    ("jobs", "default", job["metadata"]["name"]), {"apiVersion": "batch/v1", **job}
                )
            spec = job["spec"]["template"]["spec"]
            for member in range(job["spec"]["completions"]):
                name = f"{job['metadata']['name']}-{member}.{spec['subdomain']}"
                retries = job["spec"].get("backoffLimitPerIndex", 0)
                pod = BoxPod(name, job["metadata"]["name"], member, spec, next(left), retries)
                self.pods.append(pod)
        for pod in self.pods:
            self._start_task(pod)

    def _sync(self, pod: BoxPod) -> None:
        """What the pod's kubelet does."""
        assert pod.task is not None
        if pod.ended:
            return
        status = pod.task.poll()
        if pod.is_sidecar:
            # The main container starts when the sidecar serves, and ends it.
            if pod.keeper is None and _serves(pod.host, self._grpc_port(pod)):
                (container,) = pod.spec["containers"]
                pod.keeper = self._start(pod, "keeper", container)
            if pod.keeper is not None and pod.keeper.poll() == 0:
                pod.task.stop()
                pod.ended = True
            elif status is not None:
                pod.restarts += 1
                self._start_task(pod)
        elif status == 0:
            pod.ended = True
        elif status is not None:
            pod.restarts += 1
            assert pod.restarts <= pod.retries, self.logs()
            self._start_task(pod)

    def _end_jobs(self) -> None:
        for job in {pod.job for pod in self.pods}:
            if all(pod.ended for pod in self.pods if pod.job == job):
                with self.api.lock:
                    self.api.end_job(job, "Complete")

    def _start_task(self, pod: BoxPod) -> None:
        pod.task = self._start(pod, "pod", task_container(pod.spec))

    def _start(self, pod: BoxPod, kind: str, container: Mapping[str, Any]) -> Task:
        index = self.pods.index(pod)
        mounts: list[str] = [str(self._folder / "etc"), "/etc"]
        if pod.spec["automountServiceAccountToken"]:
            mounts += [str(self._folder / "run"), "/run"]
        volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
        scratch = self._folder / f"{kind}-{index}"
        for mount in container.get("volumeMounts", ()):
            claim = volumes[mount["name"]].get("persistentVolumeClaim")
            if claim is not None:
                mounts[:0] = [str(self._claims[claim["claimName"]]), mount["mountPath"]]
            elif "configMap" in volumes[mount["name"]]:
                assert mount["mountPath"] == "/etc/tensorwire"
            else:
                assert mount["mountPath"] == "/tmp"
                mounts += _with_the_image(scratch)
        argv = ["unshare", "--mount", "sh", "-c", _MOUNT, "sh", *mounts, "--"]
        argv += [container.get("workingDir", "/"), *container["command"]]
        argv += container.get("args", ())
        return self._cluster.start(
            f"{kind}-{index}", 0, argv, self._environment(pod, container), cwd=Path("/")
        )

    def _environment(self, pod: BoxPod, container: Mapping[str, Any]) -> dict[str, str]:
        environment: dict[str, str] = {}
        for each in container.get("env", ()):
            source = each.get("valueFrom")
            if source is None:
                environment[each["name"]] = _filled_in(each.get("value", ""), environment)
            elif "configMapKeyRef" in source:
                environment[each["name"]] = self._config["data"][source["configMapKeyRef"]["key"]]
            else:
                assert source == {"fieldRef": {"fieldPath": "metadata.namespace"}}
                environment[each["name"]] = "default"
        return environment | {
            "JOB_COMPLETION_INDEX": str(pod.member),
            "KUBERNETES_SERVICE_HOST": self._api_address,
            "KUBERNETES_SERVICE_PORT": str(_API_PORT),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TENSORWIRE_CACHE": str(cache_folder()),
            "PYTHONPATH": str(Path(tensorwire.__file__).parents[1]),
        }

    def _grpc_port(self, pod: BoxPod) -> int:
        ports = {port["name"]: port["containerPort"] for port in task_container(pod.spec)["ports"]}
        probe = task_container(pod.spec)["startupProbe"]["tcpSocket"]["port"]
        return int(ports[probe])


def _unreadable(folder: str) -> list[str]:
    """What of a folder is no file that can be copied."""
    entries = list(os.scandir(folder))
    return [
        e.name
        for e in entries
        if not (
            e.is_dir(follow_symlinks=False) or e.is_file(follow_symlinks=False) or e.is_symlink()
        )
    ]


def _filled_in(value: str, known: Mapping[str, str]) -> str:
    """As Kubernetes does it: $(NAME) stands for a variable, $$ for a $."""

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        return "$" if name is None else known.get(name, match[0])

    return re.sub(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)", fill, value)


def _with_the_image(scratch: Path) -> list[str]:
    """An empty /tmp, in which what the image consists of is still found if it is under /tmp."""
    folder = scratch / "tmp"
    paths = {*sys.path, sys.prefix, sys.base_prefix, str(cache_folder())}
    tops = {Path(*Path(p).parts[:3]) for p in paths if p.startswith("/tmp/")}
    mounts: list[str] = []
    for top in sorted(tops):
        (folder / top.name).mkdir(parents=True, exist_ok=True)
        mounts += [str(top), str(folder / top.name)]
    folder.mkdir(parents=True, exist_ok=True)
    return [*mounts, str(folder), "/tmp"]


def _in_namespace(path: str, work: Any) -> Any:
    """What `work` returns in a thread that has entered a network namespace, and ends there."""
    results: list[Any] = []

    def enter() -> None:
        try:
            with Path(path).open() as namespace:
                if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0) != 0:
                    raise OSError(ctypes.get_errno(), "cannot enter a network namespace")
            results.append(work())
        except OSError as error:
            results.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if isinstance(results[0], OSError):
        raise results[0]
    return results[0]


def _listen(namespace: str, address: str, port: int) -> socket.socket:
    listener = _in_namespace(namespace, lambda: socket.create_server((address, port)))
    assert isinstance(listener, socket.socket)
    return listener


def _serves(host: Host, port: int) -> bool:
    """The startup probe."""
    try:
        probe = _in_namespace(
            host.namespaces[0], lambda: socket.create_connection((host.address, port), timeout=1)
        )
    except OSError:
        return False
    probe.close()
    return True
