"""The connection to a cluster: kubeconfig, the official client, and errors with advice."""

from __future__ import annotations

import contextlib
import json
import os
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorwire.errors import TensorwireError, UsageError

try:
    import urllib3
    import yaml
    from kubernetes import client, config
    from kubernetes.client.exceptions import ApiException
    from kubernetes.config.config_exception import ConfigException
    from kubernetes.dynamic import DynamicClient
    from kubernetes.dynamic.discovery import LazyDiscoverer
    from kubernetes.dynamic.exceptions import DynamicApiError, ResourceNotFoundError
except ImportError as error:
    raise TensorwireError(
        f"the client for Kubernetes is missing ({error}): pip install 'tensorwire[k8s]'"
    ) from error

API_ERRORS = (ApiException, DynamicApiError)
"""The client's exceptions for unsuccessful answers; each has a `status`."""

TRANSPORT_ERROR = urllib3.exceptions.HTTPError
"""The client's exception for no answer."""

TIMEOUT_S = (5.0, 30.0)
"""Timeouts for connecting, and for the next bytes of an answer."""

_BUSY_FOR_S = 60.0
"""How long the server may answer nothing but "too many requests"."""

_PAUSE_S = (0.25, 4.0)
"""The first and the longest pause before a request is sent again after such an answer."""

# Too many requests, and the answers of a server that is starting.
_TRY_AGAIN = (429, 500, 502, 503, 504)

JOB_LABEL = "tensorwire/job"

_PLAIN = "or use --format plain"
_TRAINER = f"Kubeflow Trainer 2 installed (https://www.kubeflow.org), {_PLAIN}"
_INSTALLED = {
    "JobSet": f"its controller installed (https://jobset.sigs.k8s.io), {_PLAIN}",
    "TrainJob": _TRAINER,
    "TrainingRuntime": _TRAINER,
    "PodGroup": "Volcano installed (https://volcano.sh), or leave --volcano-queue out",
}
"""By kind of object: advice for a cluster without this kind."""


class Unreachable(TensorwireError):
    """The cluster does not answer now, but may answer later."""


class Withheld(TensorwireError):
    """The cluster has no such kind of object, or the user may not do this with it."""


class Connection:
    """A cluster, seen from one namespace. A context manager."""

    def __init__(
        self,
        context: str | None = None,
        namespace: str | None = None,
        kubeconfig: Path | None = None,
    ) -> None:
        """Reads `kubeconfig`; if None, the user's as kubectl does, or the configuration of a pod.

        Raises:
            UsageError: there is no kubeconfig, or it does not have the context.
        """
        settings, current = _settings(context, kubeconfig)
        self.namespace = namespace or current
        self.api = _Client(settings)
        self.core = client.CoreV1Api(self.api)
        self._cache = tempfile.TemporaryDirectory(prefix="tensorwire-k8s-")
        self._dynamic: Any = None

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.api.close()
        self._cache.cleanup()

    def resource(self, api_version: str, kind: str) -> Any:
        """The dynamic client's resource for a kind of object.

        Raises:
            Withheld: the cluster has no such kind.
        """
        try:
            with self.explained():
                return self._resources().get(api_version=api_version, kind=kind)
        except ResourceNotFoundError:
            if kind in _INSTALLED:
                raise Withheld(f"the cluster has no {kind}: have {_INSTALLED[kind]}") from None
            raise Withheld(f"the cluster has no {kind} of {api_version}") from None

    def find(self, api_version: str, kind: str, name: str, namespace: str | None = None) -> Any:
        """The object of that name as a plain dictionary; None if there is none.

        Raises:
            Withheld: the cluster has no such kind, or the user may not read it.
        """
        resource = self.resource(api_version, kind)
        with self.explained():
            try:
                return resource.get(name=name, namespace=namespace or self.namespace).to_dict()
            except API_ERRORS as error:
                if error.status == 404:
                    return None
                raise

    def list(self, api_version: str, kind: str, **selectors: str) -> Any:
        """The objects of the namespace that the selectors choose, as plain dictionaries.

        Raises:
            Withheld: the cluster has no such kind, or the user may not list it.
        """
        resource = self.resource(api_version, kind)
        with self.explained():
            found = resource.get(namespace=self.namespace, **selectors)
            return found.to_dict()["items"]

    def _resources(self) -> Any:
        if self._dynamic is None:
            # The client's cache is removed with this object, because a stale cache is wrong.
            cache = str(Path(self._cache.name) / "discovery.json")
            self._dynamic = DynamicClient(self.api, cache_file=cache, discoverer=LazyDiscoverer)
        return self._dynamic.resources

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turns exceptions of the client into errors of one line that say what to do."""
        try:
            yield
        except API_ERRORS as error:
            status = int(error.status or 0)
            kinds = {403: Withheld, **dict.fromkeys(_TRY_AGAIN, Unreachable)}
            raise kinds.get(status, TensorwireError)(explain(error, self.namespace)) from error
        except TRANSPORT_ERROR as error:
            raise Unreachable(self._unreachable(error)) from error

    def _unreachable(self, error: Exception) -> str:
        server = self.api.configuration.host
        reason = getattr(error, "reason", None) or error
        if isinstance(reason, urllib3.exceptions.SSLError):
            return (
                f"the certificate of {server} does not match your kubeconfig: "
                "fetch the kubeconfig of this cluster again"
            )
        return (
            f"no answer from the cluster at {server}: check that it runs, and that it is the right "
            "one (kubectl config current-context; --context names another)"
        )


def explain(error: ApiException | DynamicApiError, namespace: str) -> str:
    """One line that explains an unsuccessful answer and says what to do."""
    status, said = int(error.status or 0), _message(error)
    if status == 401:
        return (
            "the cluster does not accept your login: log in again, or use another --context "
            "(`kubectl auth whoami` shows your user)"
        )
    if status == 403 and "exceeded quota" in said:
        return (
            f"the quota of namespace {namespace} is too low ({said}): request less (--worker-cpu, "
            "--worker-memory, --ps-cpu, --ps-memory, fewer tasks) or have the quota raised"
        )
    if status == 403:
        hint = ""
        if "secrets" in said:
            hint = "; --token-secret NAME uses an existing Secret, --no-token none"
        if "roles" in said or "rolebindings" in said or "serviceaccounts" in said:
            hint = "; --service-account NAME uses an existing account, which may list jobs"
        return (
            f"you lack a permission ({said}): ask the cluster's administrator for it, or use "
            f"another --namespace{hint}"
        )
    if status == 404 and said.startswith("namespaces "):
        return f"there is no namespace {namespace}: create it, or name another with --namespace"
    if status == 422 and "field is immutable" in said:
        return (
            "a different job of this name exists: remove it first with `tensorwire k8s delete`, "
            "or use another --name"
        )
    if status == 422:
        return f"the cluster rejects the manifests: {said}"
    return f"the cluster answered {status}: {said}"


def _message(error: ApiException | DynamicApiError) -> str:
    body = error.body.decode(errors="replace") if isinstance(error.body, bytes) else error.body
    with contextlib.suppress(ValueError, TypeError):
        status = json.loads(body or "")
        if isinstance(status, dict) and status.get("message"):
            return " ".join(str(status["message"]).split())
    return " ".join(str(body or error.reason or "").split())[:300]


class _Client(client.ApiClient):  # type: ignore[misc]
    """A client that gives every call a timeout, and sends it again while the server is busy."""

    def __init__(self, settings: client.Configuration) -> None:
        super().__init__(settings)
        self._busy_since: float | None = None  # the first of the last answers, if all were 429

    def call_api(self, *arguments: Any, **options: Any) -> Any:
        options["_request_timeout"] = options.get("_request_timeout") or TIMEOUT_S
        pause_s, longest_s = _PAUSE_S
        while True:
            try:
                answer = super().call_api(*arguments, **options)
            except ApiException as error:  # raised by clients before version 36
                if not self._is_asked_again(error.status):
                    raise
            else:
                if not self._is_asked_again(getattr(answer, "status", None)):
                    return answer
            # At random, because clients that were refused together would come together again.
            time.sleep(random.uniform(pause_s / 2, pause_s))
            pause_s = min(2 * pause_s, longest_s)

    def _is_asked_again(self, status: int | None) -> bool:
        """Whether the server is sent a request again that it answered with `status`."""
        if status != 429:
            self._busy_since = None
            return False
        now = time.monotonic()
        self._busy_since = self._busy_since or now
        return now - self._busy_since <= _BUSY_FOR_S


def _settings(context: str | None, kubeconfig: Path | None) -> tuple[Any, str]:
    """The client's configuration, and its default namespace."""
    settings = client.Configuration()
    settings.retries = False  # urllib3 retries without a pause, and prints a line for each
    try:
        # Given explicitly, because the client reads KUBECONFIG only once, at its import.
        path = str(kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config")
        config.load_kube_config(path, context=context, client_configuration=settings)
        contexts, active = config.list_kube_config_contexts(path)
        for each in contexts:
            if context is not None and each["name"] == context:
                active = each
        return settings, active["context"].get("namespace") or "default"
    except ConfigException as error:
        if context is None:
            with contextlib.suppress(ConfigException, OSError):
                config.load_incluster_config(client_configuration=settings)
                path = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
                return settings, Path(path).read_text(encoding="utf-8").strip()
        raise UsageError(_no_config(error, context)) from None
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        raise UsageError(
            f"your kubeconfig cannot be read ({' '.join(str(error).split())}): check that "
            "KUBECONFIG or ~/.kube/config is the file that you got for the cluster"
        ) from None


def _no_config(error: ConfigException, context: str | None) -> str:
    said = " ".join(str(error).split())
    if context is not None:
        return (
            f"your kubeconfig has no usable context {context} ({said}): "
            "`kubectl config get-contexts` lists them"
        )
    return (
        f"no cluster is configured ({said}): set KUBECONFIG to the file that you got for the "
        "cluster, or put the file at ~/.kube/config"
    )
