"""A namespace of a real control plane, and a user with rights only in it.

Nodes are either those of a VirtualKubelet, which run pods, or bare nodes, where a test sets the
status of each pod. Everything else is real Kubernetes: validation, admission, rights, controllers
and the scheduler.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from local_kubernetes import ControlPlane, VirtualKubelet
from local_kubernetes.api import NO_ANSWER, STRATEGIC_MERGE, Api, Object, Refused
from local_kubernetes.containers import now
from local_kubernetes.kubelet import beat, register
from local_kubernetes.kubelet_server import KubeletServer
from tensorwire.owning_context import OwningContext

WITHIN_S = 120.0  # a machine may be busy
_PATHS = {
    "pods": "/api/v1",
    "secrets": "/api/v1",
    "configmaps": "/api/v1",
    "services": "/api/v1",
    "serviceaccounts": "/api/v1",
    "events": "/api/v1",
    "resourcequotas": "/api/v1",
    "jobs": "/apis/batch/v1",
    "jobsets": "/apis/jobset.x-k8s.io/v1alpha2",
    "networkpolicies": "/apis/networking.k8s.io/v1",
    "roles": "/apis/rbac.authorization.k8s.io/v1",
    "rolebindings": "/apis/rbac.authorization.k8s.io/v1",
}
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
# Objects that the control plane itself creates in each namespace.
_NOT_OURS = ("kube-root-ca.crt", "default", "jo")


def eventually(holds: Callable[[], object], within_s: float = WITHIN_S) -> None:
    """Returns when `holds()` is true. Raises AssertionError after `within_s`."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {within_s:g} s"
        time.sleep(0.2)  # often it asks the API server


Lab = Callable[..., contextlib.AbstractContextManager[VirtualKubelet]]
"""Nodes that run pods: ``lab(2, pods=3)``."""


class Cluster(OwningContext):
    """A context manager: a namespace under the restricted pod security standard, and its user."""

    def __init__(self, control_plane: ControlPlane, folder: Path) -> None:
        self.control_plane = control_plane
        self.namespace = f"team-{secrets.token_hex(4)}"
        self.kubeconfig = folder / f"{self.namespace}.kubeconfig"
        self.api: Api = control_plane.api()

    def _open(self, held: contextlib.ExitStack) -> None:
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        self.make("/api/v1/namespaces", "Namespace", self.namespace, labels=labels)
        held.callback(self._remove)
        token = self.account("jo", "admin")
        # JobSet does not add its rights to the roles "admin" and "edit".
        rules = [{"apiGroups": ["jobset.x-k8s.io"], "resources": ["jobsets"], "verbs": ["*"]}]
        self.make(self.path("roles"), "Role", "jo-jobsets", rules=rules)
        self.bind("jo-jobsets", "jo", {"kind": "Role", "name": "jo-jobsets"})
        self.control_plane.kubeconfig(self.kubeconfig, token, self.namespace)

    def make(
        self, path: str, kind: str, name: str, labels: Mapping[str, str] | None = None, **rest: Any
    ) -> Object:
        metadata = {"name": name, "labels": dict(labels or {})}
        return self.api.create(path, {"kind": kind, "metadata": metadata, **rest})

    def path(self, plural: str, name: str | None = None) -> str:
        path = f"{_PATHS[plural]}/namespaces/{self.namespace}/{plural}"
        return path if name is None else f"{path}/{name}"

    def account(self, name: str, *roles: str) -> str:
        """Creates a service account with cluster roles in this namespace; returns its token."""
        self.make(self.path("serviceaccounts"), "ServiceAccount", name)
        for role in roles:
            reference = {"kind": "ClusterRole", "name": role}
            self.bind(f"{name}-{role}", name, reference)
        spec: Object = {"spec": {"expirationSeconds": 7200}}
        answer = self.api.create(f"{self.path('serviceaccounts', name)}/token", spec)
        return str(answer["status"]["token"])

    def bind(self, name: str, account: str, role: Mapping[str, str]) -> None:
        group = "rbac.authorization.k8s.io"
        subject = {"kind": "ServiceAccount", "name": account, "namespace": self.namespace}
        self.make(
            self.path("rolebindings"),
            "RoleBinding",
            name,
            roleRef={"apiGroup": group, **role},
            subjects=[subject],
        )

    def use_rights(self, name: str, rules: Sequence[Mapping[str, Sequence[str]]]) -> None:
        """Changes the user of the kubeconfig to one with only these rights."""
        self.make(self.path("roles"), "Role", name, rules=rules)
        token = self.account(name)
        self.bind(name, name, {"kind": "Role", "name": name})
        self.control_plane.kubeconfig(self.kubeconfig, token, self.namespace)

    @contextlib.contextmanager
    def kinds(self, folder: Path) -> Iterator[None]:
        """Installs an add-on's CustomResourceDefinitions from a folder, with rights for user jo."""
        definitions = [yaml.safe_load(path.read_text()) for path in sorted(folder.glob("*.yaml"))]
        (group,) = {each["spec"]["group"] for each in definitions}
        rules = [{"apiGroups": [group], "resources": ["*"], "verbs": ["*"]}]
        self.make(self.path("roles"), "Role", f"jo-{group}", rules=rules)
        self.bind(f"jo-{group}", "jo", {"kind": "Role", "name": f"jo-{group}"})
        paths = [f"{_DEFINITIONS}/{each['metadata']['name']}" for each in definitions]

        def established() -> bool:
            return all(
                any(
                    each["type"] == "Established" and each["status"] == "True"
                    for each in self.api.get(path)["status"].get("conditions") or ()
                )
                for path in paths
            )

        try:
            for each in definitions:
                self.control_plane.apply(each)
            eventually(established)
            yield
        finally:
            for path in paths:
                with contextlib.suppress(Refused):
                    self.api.delete(path)

    def of_kind(self, plural: str) -> list[Object]:
        """The objects of a kind, without those of the control plane."""
        found = self.api.get(self.path(plural))["items"]
        return [each for each in found if not each["metadata"]["name"].startswith(_NOT_OURS)]

    def pods(self, part: str = "") -> list[Object]:
        return [pod for pod in self.of_kind("pods") if part in pod["metadata"]["name"]]

    def wait_pods(self, count: int) -> list[Object]:
        """Waits until there are `count` pods, and returns them."""
        eventually(lambda: len(self.pods()) == count)
        return self.pods()

    @property
    def is_empty(self) -> bool:
        return not any(self.of_kind(plural) for plural in _PATHS if plural != "events")

    def _remove(self) -> None:
        for plural in ("jobsets", "jobs"):
            with contextlib.suppress(Refused):
                for each in self.api.get(self.path(plural))["items"]:
                    self.delete(plural, each["metadata"]["name"])
        # A pending pod of this namespace must not use a node of the next test.
        deadline = time.monotonic() + WITHIN_S
        while (pods := self.pods()) and time.monotonic() < deadline:
            for pod in pods:
                self.delete("pods", pod["metadata"]["name"], gracePeriodSeconds=0)
            time.sleep(0.1)
        self.api.delete(f"/api/v1/namespaces/{self.namespace}")

    def delete(self, plural: str, name: str, **options: Any) -> None:
        with contextlib.suppress(Refused):
            body = {"propagationPolicy": "Background", **options}
            self.api.delete(self.path(plural, name), body)


class BareNodes(OwningContext):
    """A context manager: ready nodes that run nothing; a test sets the status of pods."""

    def __init__(
        self,
        cluster: Cluster,
        names: Sequence[str],
        labels: Mapping[str, Mapping[str, str]] | None = None,
        cpus: int = 64,
    ) -> None:
        self._cluster, self._names, self._labels = cluster, names, labels or {}
        self._room = {"cpu": str(cpus), "memory": "256Gi", "pods": "110"}
        self.logs: dict[str, Path] = {}
        """Logs of containers `task`, by a part of their pod's name."""
        self._stop = threading.Event()

    def _open(self, held: contextlib.ExitStack) -> None:
        plane, self._api = self._cluster.control_plane, self._cluster.control_plane.api()
        server = held.enter_context(KubeletServer(plane.certificate, plane.key, self._log_of))
        for name in self._names:
            register(self._api, name, self._labels.get(name, {}), self._room, server.port)
            held.callback(self._api.delete, f"/api/v1/nodes/{name}")
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        held.callback(thread.join)
        held.callback(self._stop.set)

    def _run(self) -> None:
        beaten = time.monotonic()
        took_s = 0.0
        while not self._stop.wait(max(0.1, 3 * took_s)):
            began = time.monotonic()
            with contextlib.suppress(Refused, NO_ANSWER):
                if time.monotonic() - beaten > 3:
                    beaten = time.monotonic()
                    for name in self._names:
                        beat(self._api, name)
                for pod in self._api.items(self._cluster.path("pods")):
                    if pod["metadata"].get("deletionTimestamp") and pod["spec"].get("nodeName"):
                        self._end(pod)
            took_s = time.monotonic() - began

    def _end(self, pod: Object) -> None:
        """Ends a pod that is to be deleted, as a kubelet does."""
        path = self._cluster.path("pods", pod["metadata"]["name"])
        if pod["status"].get("phase") not in ("Succeeded", "Failed"):
            self._api.patch(f"{path}/status", {"status": {"phase": "Failed"}})
        self._api.delete(path, {"gracePeriodSeconds": 0})

    def _log_of(
        self, namespace: str, pod: str, container: str
    ) -> tuple[Path, Callable[[], bool]] | None:
        for part, log in self.logs.items():
            if part in pod and container == "task":
                return log, lambda: False
        return None

    # Methods that set the status of pods.

    def wait_placed(self, count: int) -> None:
        """Waits until `count` pods have a node."""
        cluster = self._cluster
        eventually(lambda: sum("nodeName" in p["spec"] for p in cluster.pods()) >= count)

    def run_all(self, but: str = " ") -> None:
        """Makes every pod with a node, whose name does not contain `but`, run and be ready."""
        for pod in self._cluster.pods():
            if but not in pod["metadata"]["name"] and "nodeName" in pod["spec"]:
                self.set_task(pod, {"running": {"startedAt": now()}}, ready=True)

    def set_task(
        self, pod: Object | str, state: Object, *, ready: bool = False, restarts: int = 0
    ) -> None:
        if isinstance(pod, str):
            (pod,) = self._cluster.pods(pod)
        phases = {"running": "Running", "waiting": "Pending"}
        ended = state.get("terminated")
        phase = phases.get(next(iter(state)), "")
        if ended is not None:
            phase = "Succeeded" if ended["exitCode"] == 0 else "Failed"
        is_init = "initContainers" in pod["spec"]
        kind = "initContainerStatuses" if is_init else "containerStatuses"
        task = {
            "name": "task",
            "image": "registry/image:1",
            "imageID": "",
            "ready": ready,
            "state": state,
            "restartCount": restarts,
        }
        status = {"phase": phase, kind: [task]}
        path = self._cluster.path("pods", pod["metadata"]["name"])
        self._api.patch(f"{path}/status", {"status": status}, STRATEGIC_MERGE)

    def end_task(self, pod: Object | str, exit_code: int, reason: str = "Error") -> None:
        ended = {"exitCode": exit_code, "reason": reason, "finishedAt": now(), "startedAt": now()}
        self.set_task(pod, {"terminated": ended})

    def end_workers(self) -> None:
        """Makes all workers succeed, and waits until the controllers have seen it."""
        for pod in self._cluster.pods("-worker-"):
            self.end_task(pod, 0, "Completed")
        self.wait_ended("-worker-", "Complete")

    def wait_ended(self, part: str, condition: str) -> None:
        """Waits until the Jobs whose names contain `part` have that condition."""

        def ended() -> bool:
            jobs = [j for j in self._cluster.of_kind("jobs") if part in j["metadata"]["name"]]
            return all(
                any(c["type"] == condition for c in job["status"].get("conditions") or ())
                for job in jobs
                if not job["spec"].get("suspend")
            )

        eventually(ended)


@contextlib.contextmanager
def bare_nodes(cluster: Cluster, count: int, **options: Any) -> Iterator[BareNodes]:
    """`count` bare nodes with unique names."""
    names = [f"{cluster.namespace}-{i}" for i in range(count)]
    with BareNodes(cluster, names, **options) as nodes:
        yield nodes
