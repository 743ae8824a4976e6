"""A virtual kubelet: nodes are parts of a lab, and containers are processes on its hosts.

It registers nodes, watches the pods that the scheduler binds to them, and runs each pod on a host
of the lab, behind its node's link and with its own address. The image of every container is this
machine. Supported: environment, mounts, users, CPU limits, restart policies, sidecars, tcpSocket
probes, and deletion with a grace period. Not supported: memory limits, NetworkPolicies, seccomp
profiles, other probes, lifecycle hooks. There is no DNS; the names of headless Services are written
to /etc/hosts from the cluster's EndpointSlices.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorwire
from local_kubernetes import volumes
from local_kubernetes.api import NO_ANSWER, STRATEGIC_MERGE, Api, Refused
from local_kubernetes.containers import Container, RunningPod, now
from local_kubernetes.control_plane import (
    SERVICE_ADDRESS,
    SERVICE_PORT,
    ControlPlane,
    NoControlPlane,
)
from local_kubernetes.egress import CONNECT_S, join
from local_kubernetes.kubelet_server import KubeletServer
from local_kubernetes.node_lab import NodeLab, inside
from local_kubernetes.volumes import NotMountable, PodFiles
from tensorwire.bench.lab import Host, HostSettings, LocalCluster, TaskProcess
from tensorwire.bench.lab.settings import MOST_HOSTS
from tensorwire.k8s.job import Resources
from tensorwire.owning_context import OwningContext
from tensorwire.plugin.cache import cache_folder

_LOGGER = logging.getLogger(__name__)
_STEP_S = 0.1
_LOOK_S = 0.3
_HEARTBEAT_S = 2.0
_PREPARE_S = 1.0  # between two attempts to get a pod's images and volumes
_MOST_CONTAINERS = 4
_NODE_ADDRESS = "127.0.0.1"
Object = Mapping[str, Any]


@dataclass(frozen=True)
class NodeSettings:
    """The settings with which a node registers."""

    name: str
    pods: int = 3
    """The number of pods that it can run at a time."""
    cpus: int = 64
    memory: str = "256Gi"
    labels: Mapping[str, str] = field(default_factory=dict)


class VirtualKubelet(OwningContext):
    """A context manager: its nodes exist in the cluster within the context."""

    def __init__(
        self,
        control_plane: ControlPlane,
        nodes: Sequence[NodeSettings],
        *,
        link: HostSettings | None = None,
        limit_cpus: bool = False,
        images: Collection[str] | None = None,
        as_users: bool = True,
    ) -> None:
        """Starts nothing.

        Args:
            link: the link of each node; None: as fast as the machine.
            limit_cpus: True to apply the CPU limits of pods, if this machine can.
            images: the images that can be pulled; None: all.
            as_users: True to run containers as the user of their manifest, who can read all files
                of the image.

        Raises:
            NoControlPlane: this user cannot run pods, or there are too many pods for a lab.
        """
        if os.geteuid() != 0:
            raise NoControlPlane("pods in the lab require root: run this as root, or use --image")
        self._control_plane = control_plane
        self._nodes = {each.name: each for each in nodes}
        self._link = link or HostSettings()
        self._limit_cpus = limit_cpus
        self._images = images
        self._as_users = as_users
        room = sum(each.pods for each in nodes)
        if room >= MOST_HOSTS:
            raise NoControlPlane(f"a lab has room for {MOST_HOSTS - 1} pods, not {room}")
        self._pods: dict[str, RunningPod] = {}
        self._files: dict[str, PodFiles] = {}
        self._ended: dict[str, RunningPod] = {}
        self._said: dict[str, str] = {}
        self._lost: set[str] = set()
        self._stop = threading.Event()
        self._lock = threading.RLock()
        self.notes: list[str] = []
        """Settings of the lab that this machine could not apply."""

    def _open(self, held: contextlib.ExitStack) -> None:
        pods = [node.pods for node in self._nodes.values()]
        lab = NodeLab(pods, self._link, change_cpus=self._limit_cpus)
        self._lab = held.enter_context(lab)
        if not self._lab.has_network:
            raise NoControlPlane(f"pods need their own network: {'; '.join(self._lab.notes)}")
        self.notes = self._lab.notes
        service, *hosts = self._lab.hosts
        self._free: dict[str, list[int]] = {}
        number = 1
        for name, node in self._nodes.items():
            self._free[name] = list(range(number, number + node.pods))
            number += node.pods
        # The pods choose their ports.
        alike = [dataclasses.replace(host, port=0) for host in hosts]
        self._cluster = held.enter_context(
            LocalCluster(
                {f"pod-{i}": _MOST_CONTAINERS for i in range(1, number)},
                {f"pod-{i}": [host] for i, host in enumerate(alike, 1)},
                may_fail=True,
            )
        )
        self._folder = self._cluster.temporary / "kubelet"
        self._folder.mkdir()
        assert service.address == SERVICE_ADDRESS
        held.enter_context(_service(self._control_plane, service))
        for host in hosts:
            to_host = functools.partial(_connect, host)
            held.enter_context(self._control_plane.egress.route(host.address, to_host))
        self._api = self._control_plane.api()
        self._server = held.enter_context(
            KubeletServer(self._control_plane.certificate, self._control_plane.key, self._log_of)
        )
        for name in self._nodes:
            self._register(name)
            held.callback(self._unregister, name)
        held.callback(self._end_pods)
        for target in (self._run, self._beat):
            thread = threading.Thread(target=target, name="kubelet")
            thread.start()
            held.callback(thread.join)
        held.callback(self._stop.set)

    # Methods for tests.

    def container(self, pod: str, name: str = "task", namespace: str = "default") -> Container:
        """A container of a pod, by a part of the pod's name. Raises KeyError."""
        with self._lock:
            for each in self._pods.values():
                metadata = each.manifest["metadata"]
                if pod in metadata["name"] and metadata["namespace"] == namespace:
                    return next(c for c in each.containers if c.name == name)
        raise KeyError(f"{namespace}/{pod}")

    def log(self, pod: str, name: str = "task", namespace: str = "default") -> Path:
        """The newest log of a container. Raises KeyError if it was not started."""
        process = self.container(pod, name, namespace).process
        if process is None:
            raise KeyError(f"{namespace}/{pod} {name} has not been started")
        return process.log

    def kill(self, pod: str, name: str = "task", namespace: str = "default") -> None:
        """Kills a container, as the kernel's out-of-memory killer does."""
        self.container(pod, name, namespace).end(signal.SIGKILL)

    def lose(self, node: str) -> None:
        """Loses a node: kills all its processes, and sends no further status or heartbeat."""
        with self._lock:
            self._lost.add(node)
            for pod in self._pods.values():
                if pod.manifest["spec"]["nodeName"] == node:
                    for container in pod.containers:
                        container.end(signal.SIGKILL)

    def renew_tokens(self) -> None:
        """Gives every pod a new service-account token, as the kubelet does before one expires."""
        with self._lock:
            for files in self._files.values():
                files.renew_tokens(self._api, now=True)

    @property
    def processes(self) -> int:
        """The number of running containers."""
        with self._lock:
            return sum(c.runs for pod in self._pods.values() for c in pod.containers)

    def tails(self) -> str:
        """The last lines of all containers, for an error message."""
        with self._lock:
            return "\n".join(
                f"--- {pod.manifest['metadata']['name']} {container.name}\n"
                f"{container.process.tail() if container.process else container.waiting}"
                for pod in self._pods.values()
                for container in pod.containers
            )

    # The threads of the kubelet.

    def _beat(self) -> None:
        """Sends heartbeats, in its own thread, so that slow pods do not delay them."""
        api = self._control_plane.api()
        while not self._stop.wait(_HEARTBEAT_S):
            for name in self._nodes.keys() - self._lost:
                with contextlib.suppress(Refused, NO_ANSWER):
                    beat(api, name)

    def _run(self) -> None:
        looked = -1e9
        while not self._stop.is_set():
            try:
                with self._lock:
                    if time.monotonic() - looked > _LOOK_S:
                        looked = time.monotonic()
                        self._look()
                    for pod in list(self._pods.values()):
                        self._sync(pod)
            except (Refused, NO_ANSWER) as error:
                # Until it answers, running containers continue; ended ones are restarted later.
                _LOGGER.debug("the kubelet has no API server: %s", error)
            self._stop.wait(_STEP_S)

    def _look(self) -> None:
        found = self._api.items("/api/v1/pods", fieldSelector="spec.nodeName!=")
        there = set()
        for manifest in found:
            metadata = manifest["metadata"]
            uid, node = metadata["uid"], manifest["spec"]["nodeName"]
            if node not in self._nodes or node in self._lost:
                there.add(uid)
                continue
            there.add(uid)
            ended = manifest.get("status", {}).get("phase") in ("Succeeded", "Failed")
            if uid in self._pods:
                self._pods[uid].manifest = manifest
            elif uid not in self._ended and not ended and not metadata.get("deletionTimestamp"):
                self._accept(manifest, node)
            if metadata.get("deletionTimestamp"):
                if uid in self._pods:
                    self._pods[uid].end(float(metadata.get("deletionGracePeriodSeconds") or 0))
                else:
                    self._let_go(manifest)
        for uid in self._pods.keys() - there:
            self._pods[uid].end(0)
        self._write_names()

    def _accept(self, manifest: Object, node: str) -> None:
        if not self._free[node]:
            return  # accepted later, when another pod has ended
        slot = self._free[node].pop()
        uid, namespace = manifest["metadata"]["uid"], manifest["metadata"]["namespace"]
        pod = RunningPod.of(manifest, self._lab.hosts[slot])
        self._pods[uid] = pod
        self._files[uid] = PodFiles(self._folder / uid, manifest, self._etc(namespace))
        pod.refusal = ("ContainerCreating", "")
        if self._limit_cpus:
            self._lab.set(
                slot, dataclasses.replace(self._lab.settings.hosts[slot], cpus=_cpus(manifest))
            )

    def _sync(self, pod: RunningPod) -> None:
        if self._is_lost(pod):
            return
        if pod.refusal is not None and not pod.is_ending and time.monotonic() > pod.prepare_at_s:
            pod.prepare_at_s = time.monotonic() + _PREPARE_S
            pod.refusal = self._prepare(pod)
        if pod.refusal is None or pod.is_ending:
            pod.step(lambda spec: self._start(pod, spec))
        self._files[pod.uid].renew_tokens(self._api)
        ended = pod.has_ended
        self._tell(pod)
        if ended:
            self._forget(pod)

    def _prepare(self, pod: RunningPod) -> tuple[str, str] | None:
        """Gets a pod's images and volumes; returns reason and message on failure."""
        for container in pod.containers:
            image = container.spec["image"]
            if self._images is not None and image not in self._images:
                return "ImagePullBackOff", f'Back-off pulling image "{image}": not found'
        try:
            self._files[pod.uid].make(self._api)
            for container in pod.containers:
                self._files[pod.uid].mounts(container.spec, self._claims(pod.manifest))
                self._environment(pod, container.spec)
            return None
        except NotMountable as error:
            return "CreateContainerConfigError", str(error)

    def _start(self, pod: RunningPod, container: Mapping[str, Any]) -> TaskProcess:
        slot = self._lab.hosts.index(pod.host)
        number = [each.name for each in pod.containers].index(container["name"])
        words = self._files[pod.uid].mounts(container, self._claims(pod.manifest))
        argv = ["unshare", "--mount", "sh", "-c", volumes.SCRIPT, "sh", *words]
        argv += self._user(pod.manifest, container)
        argv += [*(container.get("command") or ()), *(container.get("args") or ())]
        environment = self._environment(pod, container)
        return self._cluster.start(f"pod-{slot}", number, argv, environment, cwd=Path("/"))

    def _user(self, manifest: Object, container: Mapping[str, Any]) -> list[str]:
        """The command prefix that switches to the container's user and drops privileges."""
        of_pod = manifest["spec"].get("securityContext") or {}
        wanted = of_pod | (container.get("securityContext") or {})
        user = wanted.get("runAsUser")
        if user is None or not self._as_users:
            return []
        group = wanted.get("runAsGroup", user)
        # In a real image the user can read the files; on this machine that needs a capability.
        reads = "+dac_read_search"
        return [
            *("setpriv", f"--reuid={user}", f"--regid={group}"),
            f"--groups={of_pod.get('fsGroup', group)}",
            *("--no-new-privs", f"--inh-caps=-all,{reads}", f"--ambient-caps=-all,{reads}"),
            f"--bounding-set=-all,{reads}",
        ]

    def _environment(self, pod: RunningPod, container: Mapping[str, Any]) -> dict[str, str]:
        """The environment of a container. Raises NotMountable if a source is missing."""
        manifest = pod.manifest
        namespace = manifest["metadata"]["namespace"]
        environment: dict[str, str] = {}
        for each in container.get("env") or ():
            source = each.get("valueFrom") or {}
            if "configMapKeyRef" in source:
                wanted = source["configMapKeyRef"]
                data = volumes.config_map(self._api, namespace, wanted["name"])
                if wanted["key"] not in data:
                    raise NotMountable(f"couldn't find key {wanted['key']} in {wanted['name']}")
                value = data[wanted["key"]]
            elif source.get("fieldRef", {}).get("fieldPath") == "status.podIP":
                value = pod.host.address
            elif "fieldRef" in source:
                value = volumes.field_of(manifest, source["fieldRef"]["fieldPath"])
            elif source:
                raise NotMountable(
                    f"the lab does not support the source of variable {each['name']}"
                )
            else:
                value = _filled_in(each.get("value") or "", environment)
            environment[each["name"]] = value
        image = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TMPDIR": "/tmp",
            "TENSORWIRE_CACHE": str(cache_folder()),
            "PYTHONPATH": str(Path(tensorwire.__file__).parents[1]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "KUBERNETES_SERVICE_HOST": SERVICE_ADDRESS,
            "KUBERNETES_SERVICE_PORT": str(SERVICE_PORT),
        }
        return image | environment

    def _claims(self, manifest: Object) -> dict[str, Path]:
        """The folders of a pod's PersistentVolumeClaims, which must be hostPath volumes."""
        found: dict[str, Path] = {}
        namespace = manifest["metadata"]["namespace"]
        for volume in manifest["spec"].get("volumes") or ():
            if "persistentVolumeClaim" not in volume:
                continue
            name = volume["persistentVolumeClaim"]["claimName"]
            claim = self._api.get(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}")
            bound = self._api.get(f"/api/v1/persistentvolumes/{claim['spec']['volumeName']}")
            if "hostPath" not in bound["spec"]:
                raise NotMountable(f"the lab supports only hostPath volumes, which {name} is not")
            found[name] = Path(bound["spec"]["hostPath"]["path"])
        return found

    def _tell(self, pod: RunningPod) -> None:
        """Writes the status of a pod if it has changed."""
        metadata = pod.manifest["metadata"]
        status = pod.status(_NODE_ADDRESS)
        before = {c["type"]: c for c in pod.manifest.get("status", {}).get("conditions") or ()}
        said = json.dumps(status, sort_keys=True)
        if self._said.get(pod.uid) == said:
            return
        for condition in status["conditions"]:
            old = before.get(condition["type"], {})
            same = old.get("status") == condition["status"]
            condition["lastTransitionTime"] = old.get("lastTransitionTime") if same else now()
        with self._if_there():
            self._api.patch(
                f"{_path(metadata)}/status",
                {"metadata": {"uid": metadata["uid"]}, "status": status},
                STRATEGIC_MERGE,
            )
        self._said[pod.uid] = said

    def _forget(self, pod: RunningPod) -> None:
        """Frees the resources of an ended pod; deletes it if deletion was requested."""
        if pod.manifest["metadata"].get("deletionTimestamp"):
            self._let_go(pod.manifest)
        del self._pods[pod.uid]
        self._files.pop(pod.uid).remove()
        self._ended[pod.uid] = pod
        self._free[pod.manifest["spec"]["nodeName"]].append(self._lab.hosts.index(pod.host))

    def _let_go(self, manifest: Object) -> None:
        metadata = manifest["metadata"]
        with self._if_there():
            self._api.delete(
                _path(metadata),
                {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}},
            )

    def _end_pods(self) -> None:
        with self._lock:
            for pod in self._pods.values():
                for container in pod.containers:
                    container.end(signal.SIGKILL)

    def _is_lost(self, pod: RunningPod) -> bool:
        return pod.manifest["spec"]["nodeName"] in self._lost

    def _log_of(
        self, namespace: str, pod: str, container: str
    ) -> tuple[Path, Callable[[], bool]] | None:
        """The log of a container, and a function that tells whether it still grows."""
        with self._lock:
            for each in [*self._pods.values(), *self._ended.values()]:
                metadata = each.manifest["metadata"]
                if (metadata["namespace"], metadata["name"]) != (namespace, pod):
                    continue
                for found in each.containers:
                    if found.name == container and found.process is not None:
                        task = found.process
                        return task.log, functools.partial(_runs, task)
        return None

    # Nodes.

    def _register(self, name: str) -> None:
        node = self._nodes[name]
        room = {"cpu": str(node.cpus), "memory": node.memory, "pods": str(node.pods)}
        register(self._api, name, node.labels, room, self._server.port)

    def _unregister(self, name: str) -> None:
        with contextlib.suppress(Refused, NO_ANSWER):
            self._api.delete(f"/api/v1/nodes/{name}")

    # Names.

    def _etc(self, namespace: str) -> Path:
        folder = self._folder / f"etc-{namespace}"
        if not folder.exists():
            volumes.copy_of_etc(folder)
            self._write_names()
        return folder

    def _write_names(self) -> None:
        slices = self._api.items("/apis/discovery.k8s.io/v1/endpointslices")
        for folder in self._folder.glob("etc-*"):
            namespace = folder.name.removeprefix("etc-")
            lines = ["127.0.0.1 localhost", f"{SERVICE_ADDRESS} kubernetes.default.svc"]
            for each in slices:
                metadata = each["metadata"]
                if metadata["namespace"] == namespace:
                    service = (metadata.get("labels") or {}).get("kubernetes.io/service-name")
                    lines += [
                        f"{endpoint['addresses'][0]} {endpoint['hostname']}.{service}"
                        for endpoint in each.get("endpoints") or ()
                        if endpoint.get("hostname")
                    ]
            text = "\n".join(sorted(set(lines))) + "\n"
            hosts = folder / "hosts"
            if hosts.read_text() != text:
                hosts.with_name("hosts.new").write_text(text)
                hosts.with_name("hosts.new").replace(hosts)

    @contextlib.contextmanager
    def _if_there(self) -> Iterator[None]:
        try:
            yield
        except Refused as error:
            if error.status not in (404, 409):
                raise


def register(
    api: Api, name: str, labels: Mapping[str, str], room: Mapping[str, str], kubelet_port: int = 0
) -> None:
    """Creates a ready node with the capacity `room`."""
    own = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
    metadata = {"name": name, "labels": own | dict(labels)}
    api.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}
    status = {
        "capacity": room,
        "allocatable": room,
        "addresses": [{"type": "InternalIP", "address": _NODE_ADDRESS}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet_port}},
        "conditions": [ready | {"lastHeartbeatTime": now(), "lastTransitionTime": now()}],
    }
    api.patch(f"/api/v1/nodes/{name}/status", {"status": status})
    beat(api, name)


def beat(api: Api, node: str) -> None:
    """Sends a heartbeat of a node: renews its Lease."""
    leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
    time_now = now().replace("Z", ".000000Z")
    spec = {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": time_now}
    body = {"metadata": {"name": node}, "spec": spec}
    try:
        api.patch(f"{leases}/{node}", body)
    except Refused as error:
        if error.status != 404:
            raise
        api.create(leases, body)


@contextlib.contextmanager
def _service(control_plane: ControlPlane, host: Host) -> Iterator[None]:
    """A listener on `host` that forwards the pods' connections to the API server."""
    address = control_plane.server.removeprefix("https://").partition(":")
    there = (address[0], int(address[2]))
    listener = inside(host, lambda: socket.create_server((host.address, SERVICE_PORT)))

    def carry(taken: socket.socket) -> None:
        with taken, contextlib.suppress(OSError), socket.create_connection(there, 5) as other:
            join(taken, other)

    def serve() -> None:
        while True:
            try:
                taken, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=carry, args=(taken,), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def _connect(host: Host, port: int) -> socket.socket:
    return inside(host, lambda: socket.create_connection((host.address, port), CONNECT_S))


def _runs(task: TaskProcess) -> bool:
    return task.poll() is None


def _path(metadata: Object) -> str:
    """The path of a pod."""
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def _cpus(manifest: Object) -> float | None:
    """The sum of the CPU limits of a pod's containers; None: no limit."""
    spec, total = manifest["spec"], 0.0
    for container in [*(spec.get("initContainers") or ()), *spec["containers"]]:
        limit = ((container.get("resources") or {}).get("limits") or {}).get("cpu")
        if limit is None:
            return None
        total += Resources(limit, "1").cores
    return total


def _filled_in(value: str, known: Mapping[str, str]) -> str:
    """Expands $(NAME) to a variable and $$ to a $, as Kubernetes does."""

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        return "$" if name is None else known.get(name, match[0])

    return re.sub(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)", fill, value)
