"""Runs rendered manifests on this machine, as Kubernetes would run them in a cluster.

A pod is a host of the lab with its own network, file system and names, behind the link of the node
that the scheduler gave it; a container is a process there, with the environment, mounts and command
of its manifest; the image is this machine. Restart policies, sidecars, CPU limits and the counts of
Jobs are obeyed; limits of memory are not, and who a process runs as is not changed.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorwire
from tensorwire.errors import TensorwireError
from tensorwire.k8s.job import CONFIG_FOLDER, TOKEN_FOLDER
from tensorwire.k8s.local_kubernetes.jobs_api import NAMESPACE, PORT, JobsApi
from tensorwire.k8s.local_kubernetes.pods import (
    Node,
    NotForBox,
    Pod,
    by_kind,
    jobs_of,
    pods_of,
    schedule,
)
from tensorwire.k8s.render import Manifest
from tensorwire.lab import Host, HostSettings, Lab, LabSettings, LocalCluster, TaskProcess
from tensorwire.lab.settings import MOST_HOSTS, LinkSettings
from tensorwire.owning_context import OwningContext
from tensorwire.plugin.tensorflow_install import cache_folder

_ACCOUNT = "secrets/kubernetes.io/serviceaccount"
_POLL_S = 0.1
_KNOWN_MOUNTS = [({"configMap"}, CONFIG_FOLDER), ({"secret"}, TOKEN_FOLDER)]
# A source may be under /tmp, so that comes last.
_MOUNT = """set -e
while [ "$1" != -- ]; do mount --rbind "$1" "$2"; shift 2; done
shift
cd "$1"
shift
exec "$@"
"""


@dataclass(eq=False)
class BoxPod:
    """A pod that runs, or has ended."""

    pod: Pod
    host: Host
    node: str
    task: TaskProcess
    """The process of its container `task`, the newest one."""
    keeper: TaskProcess | None = None
    """Process of a sidecar's main container."""
    restarts: int = 0
    ended: bool = False

    @property
    def name(self) -> str:
        return self.pod.name


class LocalKubernetes(OwningContext):
    """A context manager; `step` lets kubelets and controllers do what is due."""

    def __init__(
        self,
        documents: Sequence[Manifest],
        claims: Mapping[str, Path] | None = None,
        link: LinkSettings | None = None,
        *,
        limit_cpus: bool = False,
    ) -> None:
        """Prepares nodes for the manifests of one job.

        Args:
            claims: a folder for each PersistentVolumeClaim that they name.
            link: of each node; as fast as the machine without.
            limit_cpus: a pod gets the CPU time of its limit and no more, where this machine can.

        Raises:
            NotForBox: the manifests ask for what the box does not know.
        """
        self._documents = documents
        self._claims = claims or {}
        self._link = link or LinkSettings()
        self._limit_cpus = limit_cpus
        self._pods = pods_of(documents)
        if len(self._pods) >= MOST_HOSTS:
            raise NotForBox(
                f"the lab has room for {MOST_HOSTS - 1} pods, and the job has {len(self._pods)}"
            )
        (self._config,) = by_kind(documents, "ConfigMap")
        self.nodes = _place(self._pods)
        """The stable names of the pods on each node."""
        self.pods: list[BoxPod] = []
        self.notes: list[str] = []
        """Requirements that this machine does not meet."""

    def _open(self, held: contextlib.ExitStack) -> None:
        self.pods = []
        lab = held.enter_context(Lab(self._lab_settings()))
        if not lab.has_network:
            raise NotForBox(f"pods need a network of their own each: {'; '.join(lab.notes)}")
        self.notes = lab.notes
        *hosts, api_host = lab.hosts
        # A keeper is not in its task's control group: it has a limit of its own.
        of_pods = {f"pod-{i}": [host] for i, host in enumerate(hosts)}
        of_keepers = {
            f"keeper-{i}": [dataclasses.replace(host, cgroup=None)] for i, host in enumerate(hosts)
        }
        self._cluster = held.enter_context(
            LocalCluster(dict.fromkeys([*of_pods, *of_keepers], 1), {**of_pods, **of_keepers})
        )
        self._folder = self._cluster.temporary / "box"
        self._write_files(hosts, api_host)
        self._api = JobsApi(
            jobs_of(self._documents), api_host.address, self._folder / "run" / _ACCOUNT
        )
        self._api_address = (api_host.address, PORT)
        listener = api_host.inside(lambda: socket.create_server(self._api_address))
        held.enter_context(self._api.serve(listener))
        node_of = {name: node for node, names in self.nodes.items() for name in names}
        for index, (pod, host) in enumerate(zip(self._pods, hosts, strict=True)):
            task = self._start(index, pod, "pod", pod.task_container)
            self.pods.append(BoxPod(pod, host, node_of[pod.name], task))

    @property
    def observer(self) -> Host:
        """A host from which every pod is reached."""
        return self.pods[0].host

    def pod(self, name: str) -> BoxPod:
        """Raises KeyError."""
        return {pod.name: pod for pod in self.pods}[name]

    def log(self, name: str) -> str:
        """The output of a pod's newest container."""
        return self.pod(name).task.log.read_text(errors="replace")

    def kill(self, name: str) -> None:
        """Kills the task's container, as the kernel's out-of-memory killer does."""
        self.pod(name).task.stop()

    def step(self) -> None:
        """Starts and ends what is due now.

        Raises:
            TensorwireError: a task that is not started again has failed; has its last lines.
        """
        for index, pod in enumerate(self.pods):
            if not pod.ended:
                self._sync(index, pod)
        for job in {pod.pod.job for pod in self.pods}:
            if all(pod.ended for pod in self.pods if pod.pod.job == job):
                self._api.end(job)

    def run(self, until: Callable[[], bool], timeout_s: float) -> None:
        """Lets time go on until `until()` holds.

        Raises:
            TensorwireError: it does not within `timeout_s`, or a task has failed.
        """
        deadline = time.monotonic() + timeout_s
        while not until():
            self.step()
            if time.monotonic() > deadline:
                raise TensorwireError(f"not within {timeout_s:g} s:\n{self.logs()}")
            time.sleep(_POLL_S)

    def logs(self) -> str:
        """The last lines of all pods, for an error."""
        return "\n".join(f"--- {pod.name}\n{pod.task.tail()}" for pod in self.pods)

    @property
    def all_ended(self) -> bool:
        return all(pod.ended for pod in self.pods)

    def _lab_settings(self) -> LabSettings:
        nodes = list(self.nodes)
        hosts = [
            HostSettings(
                node=next(i for i, node in enumerate(nodes) if pod.name in self.nodes[node]),
                cpus=pod.cpu_limit if self._limit_cpus else None,
            )
            for pod in self._pods
        ]
        api_host = HostSettings()
        return LabSettings((*hosts, api_host), (self._link,) * len(nodes))

    def _write_files(self, hosts: Sequence[Host], api: Host) -> None:
        """The config map and the service's names, as files."""
        etc = self._folder / "etc"
        shutil.copytree("/etc", etc, symlinks=True, ignore=lambda folder, _: _unreadable(folder))
        lines = ["127.0.0.1 localhost", f"{api.address} kubernetes"]
        for pod, host in zip(self._pods, hosts, strict=True):
            lines.append(f"{host.address} {pod.name} {pod.name.partition('.')[0]}")
        (etc / "hosts").unlink(missing_ok=True)
        (etc / "hosts").write_text("\n".join(lines) + "\n")
        config = self._folder / CONFIG_FOLDER.lstrip("/")
        config.mkdir()
        for key, text in self._config["data"].items():
            (config / key).write_text(text)
        for secret in by_kind(self._documents, "Secret"):
            token = self._folder / TOKEN_FOLDER.lstrip("/") / "token"
            token.parent.mkdir()
            token.touch(0o400)
            token.write_bytes(base64.b64decode(secret["data"]["token"]))

    def _sync(self, index: int, pod: BoxPod) -> None:
        """One round of the pod's kubelet."""
        status = pod.task.poll()
        if pod.pod.is_sidecar:
            # The main container starts when the sidecar serves, and ends it.
            if pod.keeper is None and _serves(pod.host, pod.pod.port("grpc")):
                (container,) = pod.pod.spec["containers"]
                pod.keeper = self._start(index, pod.pod, "keeper", container)
            if pod.keeper is not None and pod.keeper.poll() == 0:
                pod.task.stop()
                pod.ended = True
                return
        if status is None:
            return
        if status == 0 and not pod.pod.is_sidecar:
            pod.ended = True
            return
        pod.restarts += 1
        if not pod.pod.is_sidecar and pod.restarts > pod.pod.retries:
            error = self._cluster.error_of(pod.task)
            raise TensorwireError(f"{pod.pod.task} (pod {pod.name}) has failed: {error}")
        pod.task = self._start(index, pod.pod, "pod", pod.pod.task_container)

    def _start(self, index: int, pod: Pod, kind: str, container: Mapping[str, Any]) -> TaskProcess:
        mounts = [str(self._folder / "etc"), "/etc"]
        if pod.spec["automountServiceAccountToken"]:
            mounts += [str(self._folder / "run"), "/run"]
        volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
        for mount in container.get("volumeMounts", ()):
            volume, path = volumes[mount["name"]], mount["mountPath"]
            if "persistentVolumeClaim" in volume:
                claim = volume["persistentVolumeClaim"]["claimName"]
                if claim not in self._claims:
                    raise NotForBox(f"in the lab there is no claim {claim}")
                mounts[:0] = [str(self._claims[claim]), path]
            elif "emptyDir" in volume and path == "/tmp":
                mounts += _with_the_image(self._folder / f"{kind}-{index}")
            elif (volume.keys() & {"configMap", "secret"}, path) not in _KNOWN_MOUNTS:
                raise NotForBox(f"the lab does not know what is mounted at {path}")
        argv = ["unshare", "--mount", "sh", "-c", _MOUNT, "sh", *mounts, "--"]
        argv += [container.get("workingDir", "/"), *container["command"]]
        argv += container.get("args", ())
        environment = self._environment(pod, container)
        return self._cluster.start(f"{kind}-{index}", 0, argv, environment, cwd=Path("/"))

    def _environment(self, pod: Pod, container: Mapping[str, Any]) -> dict[str, str]:
        environment: dict[str, str] = {}
        for each in container.get("env", ()):
            source = each.get("valueFrom", {})
            if not source:
                value = _filled_in(each.get("value", ""), environment)
            elif "configMapKeyRef" in source:
                value = self._config["data"][source["configMapKeyRef"]["key"]]
            elif source == {"fieldRef": {"fieldPath": "metadata.namespace"}}:
                value = NAMESPACE
            else:
                raise NotForBox(f"the lab does not know where {each['name']} comes from")
            environment[each["name"]] = value
        host, port = self._api_address
        return environment | {
            "JOB_COMPLETION_INDEX": str(pod.member),
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": str(port),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TMPDIR": "/tmp",
            "TENSORWIRE_CACHE": str(cache_folder()),
            "PYTHONPATH": str(Path(tensorwire.__file__).parents[1]),
        }


def _place(pods: Sequence[Pod]) -> dict[str, set[str]]:
    """The pods on each node of a cluster that has nodes enough."""
    nodes = [Node(f"node-{i}") for i in range(len(pods))]
    if left := schedule(pods, nodes):
        raise NotForBox(f"no node can take {left[0].name}, however many there are")
    return {node.name: {pod.name for pod in node.pods} for node in nodes if node.pods}


def _unreadable(folder: str) -> list[str]:
    """Entries of a folder that are not files and cannot be copied."""
    entries = list(os.scandir(folder))
    return [
        e.name
        for e in entries
        if not (
            e.is_dir(follow_symlinks=False) or e.is_file(follow_symlinks=False) or e.is_symlink()
        )
    ]


def _filled_in(value: str, known: Mapping[str, str]) -> str:
    """Expands $(NAME) to a variable and $$ to a $, as Kubernetes does."""

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        return "$" if name is None else known.get(name, match[0])

    return re.sub(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)", fill, value)


def _with_the_image(folder: Path) -> list[str]:
    """An empty /tmp, in which what the image consists of is still found if it is under /tmp."""
    paths = {*sys.path, sys.prefix, sys.base_prefix, str(cache_folder())}
    tops = {Path(*Path(p).parts[:3]) for p in paths if p.startswith("/tmp/")}
    folder.mkdir(exist_ok=True)
    mounts: list[str] = []
    for top in sorted(tops):
        (folder / top.name).mkdir(exist_ok=True)
        mounts += [str(top), str(folder / top.name)]
    return [*mounts, str(folder), "/tmp"]


def _serves(host: Host, port: int) -> bool:
    """The startup probe."""
    try:
        probe = host.inside(lambda: socket.create_connection((host.address, port), timeout=1))
    except OSError:
        return False
    probe.close()
    return True
