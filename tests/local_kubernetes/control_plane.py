"""Kubernetes' real control plane on this machine: etcd, API server, controllers and scheduler.

The programs are built from Kubernetes' sources by `make control-plane`, in a clone of tensorwire.
They listen on loopback. Authentication uses tokens, and authorization is RBAC. The API server
connects to pods through `egress`, because pods of a lab are in other network namespaces.
"""

from __future__ import annotations

import base64
import contextlib
import secrets
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from local_kubernetes.api import Api
from local_kubernetes.egress import Egress
from tensorwire.bench.lab import LocalCluster, TaskProcess
from tensorwire.errors import TensorwireError
from tensorwire.k8s import submit
from tensorwire.k8s.connection import Connection
from tensorwire.owning_context import OwningContext
from tensorwire.plugin.cache import cache_folder

SERVICE_ADDRESS, SERVICE_PORT = "198.18.0.1", 6443
"""Address of the API server for pods: that of a lab's first host."""

_UP_WITHIN_S = 120.0
_POLL_S = 0.1
_ADMIN = "admin"
# Each component's user, as in Kubernetes' default roles, and the user's groups.
_USERS = {
    _ADMIN: "system:masters",
    "system:kube-controller-manager": "",
    "system:kube-scheduler": "",
    "jobset-controller": "",
}
_JOBSET_WEBHOOKS = "jobset-webhooks.yaml"


class NoControlPlane(TensorwireError):
    """The programs are missing, or cannot run here."""


@dataclass(frozen=True)
class Pace:
    """The times after which the control plane regards a node as lost."""

    lost_after_s: int = 40
    """Seconds without a heartbeat until a node is NotReady."""
    evict_after_s: int = 300
    """Seconds until the pods of such a node are evicted."""


def folder() -> Path:
    """The folder of the programs, which `make control-plane` fills."""
    return cache_folder() / "control-plane"


def check_built() -> None:
    """Raises NoControlPlane if it is not built; the message says how to build it."""
    if not (folder() / "built").exists():
        raise NoControlPlane(
            f"Kubernetes' control plane is not built in {folder()}: run `make control-plane` in a "
            "clone of tensorwire (it needs Go 1.26 or newer), with the same TENSORWIRE_CACHE"
        )
    if shutil.which("openssl") is None:
        raise NoControlPlane("the local API server needs a certificate: install openssl")


class ControlPlane(OwningContext):
    """A context manager that runs the control plane, and removes everything at its end."""

    def __init__(self, pace: Pace | None = None) -> None:
        """Starts nothing. Raises NoControlPlane if it is not built."""
        check_built()
        self._pace = pace or Pace()
        self._tokens = {user: secrets.token_hex() for user in _USERS}
        self._tasks: dict[str, TaskProcess] = {}

    def _open(self, held: contextlib.ExitStack) -> None:
        names = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"]
        self._cluster = held.enter_context(
            LocalCluster(dict.fromkeys([*names, "jobset-controller"], 1))
        )
        self._files = self._cluster.temporary / "control-plane"
        self._files.mkdir()
        self.egress = held.enter_context(Egress(self._files / "egress"))
        self._write_files()
        for name in names[:2]:
            self.start(name)
        self._until(lambda: self._answers("kube-apiserver", "/readyz"), "the API server")
        for name in names[2:]:
            self.start(name)
        self._until(lambda: self._answers("kube-scheduler", "/readyz"), "the scheduler")
        path = "/api/v1/namespaces/default/serviceaccounts/default"
        self._until(lambda: self._answers("kube-apiserver", path), "the controller manager")
        self._install_jobset()

    @property
    def server(self) -> str:
        """The API server's URL, on this machine."""
        return f"https://{self._cluster.spec['kube-apiserver'][0]}"

    @property
    def certificate(self) -> Path:
        """The certificate of all servers here; clients use it to verify them."""
        return self._files / "tls.crt"

    @property
    def key(self) -> Path:
        """The key of `certificate`."""
        return self._files / "tls.key"

    def kubeconfig(self, path: Path, token: str | None = None, namespace: str = "default") -> Path:
        """Writes a kubeconfig; for the administrator if no token is given."""
        path.write_text(yaml.safe_dump(self._kubeconfig(token or self._tokens[_ADMIN], namespace)))
        return path

    def start(self, component: str) -> None:
        """Starts a component, for the first time or again after `stop`."""
        program = [str(folder() / "control-plane"), component]
        if component == "jobset-controller":
            program = [str(folder() / component)]
        flags = [f"--{name}={value}" for name, value in self._flags(component).items()]
        # Limits each Go program to two running threads.
        self._tasks[component] = self._cluster.start(
            component,
            0,
            [*program, *flags],
            {"GOMAXPROCS": "2", "GOGC": "60"},
            cwd=self._files,
        )

    def stop(self, component: str) -> None:
        """Kills a component, as if its machine were lost."""
        self._tasks[component].stop()

    def log(self, component: str) -> str:
        return self._tasks[component].log.read_text(errors="replace")

    def pids(self) -> Mapping[str, int]:
        """Process ids of all components."""
        return {name: task.pid for name, task in self._tasks.items()}

    def wait_ready(self) -> None:
        """Waits until the API server answers again. Raises TensorwireError after two minutes."""
        self._until(lambda: self._answers("kube-apiserver", "/readyz"), "the API server")

    def connection(self, namespace: str = "default") -> Connection:
        """A connection as the administrator."""
        path = self.kubeconfig(self._files / "admin.kubeconfig")
        return Connection(namespace=namespace, kubeconfig=path)

    def api(self) -> Api:
        """A client of the API server as the administrator."""
        return Api(self.server, self._tokens[_ADMIN], self.certificate)

    def apply(self, manifest: Mapping[str, Any]) -> None:
        """Creates or updates an object as the administrator."""
        with self.connection() as connection:
            submit.apply(connection, dict(manifest))

    def _flags(self, component: str) -> dict[str, object]:
        files, address = self._files, self._cluster.spec[component][0]
        port = int(address.rpartition(":")[2])
        other = f"127.0.0.1:{port + 20000}"  # free, too: see PortLease
        serving = {
            "tls-cert-file": self.certificate,
            "tls-private-key-file": self.key,
            "bind-address": "127.0.0.1",
            "secure-port": port,
        }
        if component == "etcd":
            return {
                "data-dir": files / "etcd",
                "listen-client-urls": f"http://{address}",
                "advertise-client-urls": f"http://{address}",
                "listen-peer-urls": f"http://{other}",
                "initial-advertise-peer-urls": f"http://{other}",
                "initial-cluster": f"default=http://{other}",
                "unsafe-no-fsync": "true",
                "log-level": "warn",
            }
        if component == "kube-apiserver":
            return {
                **serving,
                "etcd-servers": f"http://{self._cluster.spec['etcd'][0]}",
                "advertise-address": SERVICE_ADDRESS,
                "endpoint-reconciler-type": "none",
                "service-cluster-ip-range": "10.96.0.0/16",
                "authorization-mode": "RBAC",
                "token-auth-file": files / "tokens.csv",
                "anonymous-auth": "false",
                "service-account-issuer": "https://kubernetes.default.svc",
                "service-account-key-file": self.certificate.with_name("tls.pub"),
                "service-account-signing-key-file": self.key,
                "kubelet-certificate-authority": self.certificate,
                "kubelet-client-certificate": self.certificate,
                "kubelet-client-key": self.key,
                "kubelet-preferred-address-types": "InternalIP",
                "egress-selector-config-file": files / "egress.yaml",
                "default-not-ready-toleration-seconds": self._pace.evict_after_s,
                "default-unreachable-toleration-seconds": self._pace.evict_after_s,
            }
        if component == "kube-controller-manager":
            return {
                **serving,
                **self._client(component),
                "leader-elect": "false",
                "root-ca-file": self.certificate,
                "service-account-private-key-file": self.key,
                "use-service-account-credentials": "true",
                "node-monitor-grace-period": f"{self._pace.lost_after_s}s",
                "node-monitor-period": "1s",
                "concurrent-job-syncs": 20,
                "kube-api-qps": 200,
                "kube-api-burst": 400,
            }
        if component == "kube-scheduler":
            return {**serving, **self._client(component), "leader-elect": "false"}
        return {
            "kubeconfig": self._config_of("jobset-controller"),
            "config": files / "jobset.yaml",
            "zap-log-level": "error",
        }

    def _client(self, component: str) -> dict[str, object]:
        config = self._config_of(f"system:{component}")
        return {
            "kubeconfig": config,
            "authentication-kubeconfig": config,
            "authorization-kubeconfig": config,
            "authorization-always-allow-paths": "/healthz,/readyz,/livez",
        }

    def _config_of(self, user: str) -> Path:
        path = self._files / f"{user.replace(':', '-')}.kubeconfig"
        return self.kubeconfig(path, self._tokens[user])

    def _kubeconfig(self, token: str, namespace: str) -> dict[str, Any]:
        authority = base64.b64encode(self.certificate.read_bytes()).decode()
        cluster = {"server": self.server, "certificate-authority-data": authority}
        context = {"cluster": "local", "user": "local", "namespace": namespace}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "local",
            "clusters": [{"name": "local", "cluster": cluster}],
            "users": [{"name": "local", "user": {"token": token}}],
            "contexts": [{"name": "local", "context": context}],
        }

    def _write_files(self) -> None:
        _make_certificate(self.certificate, self.key)
        lines = [
            f'{token},{user},{number},"{_USERS[user]}"'
            for number, (user, token) in enumerate(self._tokens.items())
        ]
        tokens = self._files / "tokens.csv"
        tokens.touch(0o600)
        tokens.write_text("\n".join(lines) + "\n")
        # Relative to the API server's folder, because the path of a Unix socket must be short.
        transport = {"uds": {"udsName": self.egress.path.name}}
        to_pods = {"proxyProtocol": "HTTPConnect", "transport": transport}
        selection = {
            "apiVersion": "apiserver.k8s.io/v1beta1",
            "kind": "EgressSelectorConfiguration",
            "egressSelections": [{"name": "cluster", "connection": to_pods}],
        }
        (self._files / "egress.yaml").write_text(yaml.safe_dump(selection))

    def _install_jobset(self) -> None:
        """Installs JobSet as its manifests do, but with the controller as a process."""
        address = self._cluster.spec["jobset-controller"][0]
        port = int(address.rpartition(":")[2])
        health = port + 20000
        configuration = {
            "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
            "kind": "Configuration",
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "webhook": {"host": "127.0.0.1", "port": port, "certDir": str(self._files)},
            "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        }
        (self._files / "jobset.yaml").write_text(yaml.safe_dump(configuration))
        for path in sorted((folder() / "jobset").glob("*.yaml")):
            for manifest in yaml.safe_load_all(path.read_text()):
                if path.name != _JOBSET_WEBHOOKS:
                    self.apply(manifest)
        for manifest in _role_of_jobset():
            self.apply(manifest)
        self.start("jobset-controller")
        self._until(lambda: _answers(f"http://127.0.0.1:{health}/readyz"), "the JobSet controller")
        for manifest in yaml.safe_load_all((folder() / "jobset" / _JOBSET_WEBHOOKS).read_text()):
            reached = self._reached_here(manifest, address)
            # The controller reports readiness before its webhooks work.
            for webhook in reached["webhooks"]:
                url = webhook["clientConfig"]["url"]
                self._until(
                    lambda url=url: _answers(url, authority=self.certificate),
                    f"the JobSet controller's webhook {webhook['name']}",
                )
            self.apply(reached)
        jobsets = "/apis/jobset.x-k8s.io/v1alpha2/jobsets"
        self._until(lambda: self._answers("kube-apiserver", jobsets), "the API server's JobSets")

    def _reached_here(self, webhooks: dict[str, Any], address: str) -> dict[str, Any]:
        """JobSet's webhooks, with an address on this machine instead of a Service."""
        authority = base64.b64encode(self.certificate.read_bytes()).decode()
        for webhook in webhooks["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            webhook["clientConfig"] = {"url": f"https://{address}{path}", "caBundle": authority}
            if webhook["rules"][0]["resources"] == ["pods"]:
                # As in JobSet's kustomization: only pods of JobSets use the webhook.
                key = "jobset.sigs.k8s.io/jobset-name"
                webhook["objectSelector"] = {
                    "matchExpressions": [{"key": key, "operator": "Exists"}]
                }
        return webhooks

    def _answers(self, component: str, path: str) -> bool:
        url = f"https://{self._cluster.spec[component][0]}{path}"
        return _answers(url, self._tokens[_ADMIN], self.certificate)

    def _until(self, holds: Any, what: str) -> None:
        deadline = time.monotonic() + _UP_WITHIN_S
        while not holds():
            self._cluster.check()
            if time.monotonic() > deadline:
                tails = "\n".join(f"--- {n}\n{t.tail(5)}" for n, t in self._tasks.items())
                raise TensorwireError(
                    f"{what} does not answer after {_UP_WITHIN_S:g} s; the logs in "
                    f"{self._cluster.directory} end:\n{tails}"
                )
            time.sleep(_POLL_S)


def _answers(url: str, token: str | None = None, authority: Path | None = None) -> bool:
    context = None if authority is None else ssl.create_default_context(cafile=str(authority))
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(url, headers=headers)
    # Without the user's proxy, because this is loopback.
    handlers = [urllib.request.ProxyHandler({})]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))  # type: ignore[arg-type]
    opener = urllib.request.build_opener(*handlers)
    try:
        with opener.open(request, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _make_certificate(certificate: Path, key: Path) -> None:
    """Makes a self-signed certificate, its key, and a separate file with the public key."""
    names = f"IP:127.0.0.1,IP:{SERVICE_ADDRESS},DNS:localhost,DNS:kubernetes.default.svc"
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    subject = ("-subj", "/CN=kubernetes/O=system:masters", "-addext", f"subjectAltName={names}")
    key.touch(0o600)
    files = ("-keyout", str(key), "-out", str(certificate))
    public = ("-pubout", "-out", str(certificate.with_name("tls.pub")))
    for arguments in (
        ("req", "-x509", "-days", "2", *new_key, *subject, *files),
        ("pkey", "-in", str(key), *public),
    ):
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


def _role_of_jobset() -> Iterator[dict[str, Any]]:
    group = "rbac.authorization.k8s.io"
    yield {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "jobset-controller"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "manager-role"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "jobset-controller"}],
    }
