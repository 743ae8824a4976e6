"""An API server as the official client sees one: HTTP, discovery, objects, and its refusals.

It keeps objects, applies on the server's side, validates what it gets by Kubernetes' own schemas,
makes the pods of Jobs and removes what hangs on a deleted object. What kubelets and the scheduler
would do, a test says. Everything a test changes is changed under `lock`.
"""

from __future__ import annotations

import copy
import functools
import itertools
import json
import math
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import kubernetes_validate
import yaml

Object = dict[str, Any]
Key = tuple[str, str, str]
"""Plural, namespace, name."""

KINDS = {
    ("", "v1"): {
        "ConfigMap": "configmaps",
        "Event": "events",
        "Namespace": "namespaces",
        "Node": "nodes",
        "Pod": "pods",
        "Secret": "secrets",
        "Service": "services",
        "ServiceAccount": "serviceaccounts",
    },
    ("batch", "v1"): {"Job": "jobs"},
    ("networking.k8s.io", "v1"): {"NetworkPolicy": "networkpolicies"},
    ("rbac.authorization.k8s.io", "v1"): {"Role": "roles", "RoleBinding": "rolebindings"},
    ("jobset.x-k8s.io", "v1alpha2"): {"JobSet": "jobsets"},
}
_CLUSTER_WIDE = ("namespaces", "nodes")


class Refusal(Exception):
    """An answer that is no success, as a Status object."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason


@dataclass
class ApiServer:
    """The state of the API server; `serve` lets clients at it."""

    has_jobset: bool = True
    forbidden: set[tuple[str, str]] = field(default_factory=set)
    """(verb, plural) that the user may not."""
    unauthorized: bool = False
    quota_of_jobs: float = math.inf
    objects: dict[Key, Object] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    """Logs by pod."""
    metrics: dict[str, Callable[[], Object]] = field(default_factory=dict)
    """The answer of a pod's endpoint."""
    requests: list[tuple[str, str]] = field(default_factory=list)
    """(verb, plural) of what changed something."""
    on_look: Callable[[ApiServer], None] | None = None
    """Called before Jobs are listed: how time goes on for a client that polls."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    _uids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self._keep("namespaces", "", {"kind": "Namespace", "metadata": {"name": "default"}})

    # What a test does, in place of scheduler, kubelets and controllers.

    def add_node(self, name: str) -> None:
        self._keep("nodes", "", {"kind": "Node", "metadata": {"name": name, "labels": {}}})

    def of_kind(self, plural: str) -> list[Object]:
        with self.lock:
            return [each for key, each in self.objects.items() if key[0] == plural]

    def pod(self, name: str) -> Object:
        return self.objects["pods", "default", name]

    def run_all(self, *, but: str = " ") -> None:
        """Every pod whose name does not contain `but` runs, and is ready."""
        for pod in self.of_kind("pods"):
            if but not in pod["metadata"]["name"]:
                self.set_task(pod["metadata"]["name"], {"running": {}}, ready=True)

    def set_task(self, name: str, state: Object, *, ready: bool = False, restarts: int = 0) -> None:
        pod = self.pod(name)
        pod["spec"]["nodeName"] = "node-1"
        kind = "initContainerStatuses" if "initContainers" in pod["spec"] else "containerStatuses"
        image = "registry/image:1"
        task = {"name": "task", "state": state, "ready": ready, "image": image}
        pod["status"] = {"phase": "Running", kind: [{**task, "restartCount": restarts}]}

    def cannot_schedule(self, name: str, message: str) -> None:
        reason = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        status = {"phase": "Pending", "conditions": [{**reason, "message": message}]}
        self.pod(name)["status"] = status

    def end_task(self, name: str, exit_code: int, reason: str = "Error") -> None:
        self.set_task(name, {"terminated": {"exitCode": exit_code, "reason": reason}})
        self.pod(name)["status"]["phase"] = "Failed" if exit_code else "Succeeded"

    def end_job(self, name: str, condition: str) -> None:
        job = self.objects["jobs", "default", name]
        job["status"] = {"conditions": [{"type": condition, "status": "True"}]}

    def cannot_make_pods(self, job: str, message: str) -> None:
        found = self.objects["jobs", "default", job]
        for pod in self.of_kind("pods"):
            if pod["metadata"]["name"].startswith(f"{job}-"):
                self._remove(("pods", "default", pod["metadata"]["name"]))
        event = {
            "kind": "Event",
            "metadata": {"name": f"{job}.1"},
            "reason": "FailedCreate",
            "message": message,
            "involvedObject": {"uid": found["metadata"]["uid"]},
        }
        self._keep("events", "default", event)

    # What a client does.

    def create_or_apply(self, key: Key, body: Object, dry_run: bool = False) -> Object:
        plural, namespace, name = key
        if plural not in _CLUSTER_WIDE and ("namespaces", "", namespace) not in self.objects:
            raise Refusal(404, "NotFound", f'namespaces "{namespace}" not found')
        if body["kind"] != "JobSet":
            wrong = _what_is_wrong(json.dumps(body))
            if wrong:
                raise Refusal(422, "Invalid", f'{body["kind"]} "{name}" is invalid: {wrong}')
        before = self.objects.get(key)
        if before is None and plural == "jobs" and len(self.of_kind("jobs")) >= self.quota_of_jobs:
            message = f'jobs.batch "{name}" is forbidden: exceeded quota: small'
            raise Refusal(403, "Forbidden", message)
        after = copy.deepcopy(before) if before else _with_defaults(body)
        _merge(after, body)
        old, new = ((thing or {}).get("spec", {}).get("template") for thing in (before, after))
        if before is not None and plural == "jobs" and old != new:
            message = f'Job.batch "{name}" is invalid: spec.template: field is immutable'
            raise Refusal(422, "Invalid", message)
        if not dry_run:
            self._keep(plural, namespace, after)
            if before is None and plural == "jobs":
                self._make_pods(namespace, after)
        return after

    def delete(self, key: Key) -> Object:
        if key not in self.objects:
            raise Refusal(404, "NotFound", f'{key[0]} "{key[2]}" not found')
        return self._remove(key)

    def _keep(self, plural: str, namespace: str, thing: Object) -> None:
        metadata = thing["metadata"]
        if namespace:
            metadata["namespace"] = namespace
        number = next(self._uids)
        metadata.setdefault("uid", f"uid-{number}")
        metadata.setdefault(
            "creationTimestamp", f"2030-01-01T00:{number // 60:02}:{number % 60:02}Z"
        )
        metadata["resourceVersion"] = str(number)
        self.objects[plural, namespace, metadata["name"]] = thing

    def _remove(self, key: Key) -> Object:
        gone = self.objects.pop(key)
        for other, thing in list(self.objects.items()):
            owners = thing["metadata"].get("ownerReferences") or ()
            if any(owner["uid"] == gone["metadata"]["uid"] for owner in owners):
                self._remove(other)
        return gone

    def _make_pods(self, namespace: str, job: Object) -> None:
        name = job["metadata"]["name"]
        for index in range(job["spec"]["completions"]):
            template = copy.deepcopy(job["spec"]["template"])
            number = {"batch.kubernetes.io/job-completion-index": str(index)}
            metadata = template["metadata"]
            metadata["labels"] |= {"batch.kubernetes.io/job-name": name, **number}
            metadata["annotations"] |= number
            metadata["name"] = f"{name}-{index}-x7k2p"
            owner = {"kind": "Job", "name": name, "uid": job["metadata"]["uid"]}
            metadata["ownerReferences"] = [owner]
            self._keep("pods", namespace, {"kind": "Pod", "status": {}, **template})

    @contextmanager
    def serve(self, folder: Path) -> Iterator[Path]:
        """Answers on loopback; yields the kubeconfig that leads there."""
        http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{http.server_address[1]}"
        path = folder / "kubeconfig"
        path.write_text(yaml.safe_dump(_kubeconfig(url)))
        try:
            yield path
        finally:
            http.shutdown()
            http.server_close()
            thread.join()


@functools.cache
def _what_is_wrong(body: str) -> str | None:
    """The schemas' objection to an object; validation takes a tenth of a second."""
    try:
        kubernetes_validate.validate(json.loads(body), kubernetes_validate.latest_version(), True)
    except kubernetes_validate.ValidationError as error:
        return str(error.message)
    return None


def _kubeconfig(url: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": url}}],
        "users": [{"name": "test", "user": {"token": "secret"}}],
    }


def _with_defaults(body: Object) -> Object:
    """Adds defaults as a server does, which a client must not take for a change."""
    thing = copy.deepcopy(body)
    if thing["kind"] == "Job":
        thing["spec"] |= {"suspend": False}
    return thing


def _merge(into: Object, given: Object) -> None:
    for key, value in given.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        elif value is None:
            into.pop(key, None)
        else:
            into[key] = copy.deepcopy(value)


def _kind(plural: str) -> str:
    return next(k for kinds in KINDS.values() for k, name in kinds.items() if name == plural)


_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>[^/]+)"
    r"(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+))?(?P<rest>/.*)?"
)


def _handler(server: ApiServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # headers and body are two writes

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            try:
                with server.lock:
                    answer = self._answer(yaml.safe_load(body) if body else {})
                code = 200
            except Refusal as error:
                code = error.code
                status = {"kind": "Status", "status": "Failure", "message": str(error)}
                answer = {**status, "reason": error.reason, "code": code}
            plain = isinstance(answer, str)
            data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "text/plain" if plain else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_DELETE = _serve

        def _answer(self, body: Object) -> Object | str:
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            # kubectl sends no token where there is no TLS.
            known = self.headers["Authorization"] in (None, "Bearer secret")
            if server.unauthorized or not known:
                raise Refusal(401, "Unauthorized", "Unauthorized")
            found = self._discovery(url.path)
            if found is not None:
                return found
            match = _PATH.fullmatch(unquote(url.path))
            if match is None or match["plural"] not in self._plurals():
                raise Refusal(404, "NotFound", "the server could not find the requested resource")
            plural, name = match["plural"], match["name"]
            key = (plural, match["namespace"] or "", name or "")
            verb = {"GET": "get" if name else "list", "DELETE": "delete"}.get(self.command, "patch")
            if (verb, plural) in server.forbidden:
                message = f'{plural} is forbidden: User "jo" cannot {verb} resource "{plural}"'
                raise Refusal(403, "Forbidden", message)
            if verb not in ("get", "list") and "dryRun" not in query:
                server.requests.append((verb, plural))
            if match["rest"]:
                return self._of_pod(name, match["rest"], query)
            if verb == "list":
                return self._list(plural, key[1], query)
            if verb == "delete":
                return server.delete(key)
            if verb == "patch" and plural in _CLUSTER_WIDE:
                if key not in server.objects:
                    raise Refusal(404, "NotFound", f'{plural} "{name}" not found')
                _merge(server.objects[key], body)
            elif verb == "patch":
                assert self.headers["Content-Type"] == "application/apply-patch+yaml"
                return server.create_or_apply(key, body, "dryRun" in query)
            if key not in server.objects:
                raise Refusal(404, "NotFound", f'{plural} "{name}" not found')
            return server.objects[key]

        def _plurals(self) -> set[str]:
            known = {plural for kinds in KINDS.values() for plural in kinds.values()}
            return known if server.has_jobset else known - {"jobsets"}

        def _discovery(self, path: str) -> Object | None:
            groups = [g for g in KINDS if server.has_jobset or "jobset" not in g[0]]
            if path == "/version":
                return {"major": "1", "minor": "37", "gitVersion": "v1.37.0"}
            if path == "/api":
                return {"kind": "APIVersions", "apiVersion": "v1", "versions": ["v1"]}
            if path == "/apis":
                named = []
                for group, version in groups:
                    this = {"groupVersion": f"{group}/{version}", "version": version}
                    named.append({"name": group, "versions": [this], "preferredVersion": this})
                return {"kind": "APIGroupList", "apiVersion": "v1", "groups": named[1:]}
            for group, version in groups:
                if path == (f"/apis/{group}/{version}" if group else f"/api/{version}"):
                    resources = [
                        {
                            "name": plural,
                            "singularName": kind.lower(),
                            "kind": kind,
                            "namespaced": plural not in _CLUSTER_WIDE,
                            "verbs": ["get", "list", "patch", "delete"],
                        }
                        for kind, plural in KINDS[group, version].items()
                    ]
                    named_group = f"{group}/{version}" if group else version
                    kinds = {"kind": "APIResourceList", "apiVersion": "v1"}
                    return {**kinds, "groupVersion": named_group, "resources": resources}
            return None

        def _list(self, plural: str, namespace: str, query: dict[str, str]) -> Object:
            if plural == "jobs" and server.on_look is not None:
                server.on_look(server)
            wanted = dict(
                part.split("=") for part in query.get("labelSelector", "").split(",") if part
            )
            field_name, _, value = query.get("fieldSelector", "").partition("=")
            items = [
                thing
                for (kind, where, _), thing in server.objects.items()
                if kind == plural
                and where == namespace
                and wanted.items() <= (thing["metadata"].get("labels") or {}).items()
                and (not field_name or thing.get(field_name) == value)
            ]
            return {"apiVersion": "v1", "kind": f"{_kind(plural)}List", "items": items}

        def _of_pod(self, name: str, rest: str, query: dict[str, str]) -> Object | str:
            name, _, port = name.partition(":")
            if ("pods", "default", name) not in server.objects:
                raise Refusal(404, "NotFound", f'pods "{name}" not found')
            if rest == "/log":
                assert query["container"] == "task"
                if name not in server.logs:
                    message = f'container "task" in pod "{name}" is waiting to start'
                    raise Refusal(400, "BadRequest", message)
                lines = server.logs[name].splitlines(keepends=True)
                return "".join(lines[-int(query.get("tailLines", len(lines))) :])
            assert (rest, port) == ("/proxy/figures", "9100")
            if name not in server.metrics:
                raise Refusal(503, "ServiceUnavailable", "connection refused")
            return server.metrics[name]()

        def log_message(self, format: str, *args: Any) -> None:
            """Nobody reads it."""

    return Handler
