"""Applies manifests to a cluster by server-side apply, and deletes them."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import difflib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from tensorwire.errors import TensorwireError, UsageError
from tensorwire.k8s import watch
from tensorwire.k8s.connection import API_ERRORS, JOB_LABEL, Connection, Withheld
from tensorwire.k8s.job import Job
from tensorwire.k8s.layout import Group
from tensorwire.k8s.render import Manifest
from tensorwire.k8s.state import first_task, most_tasks

CREATED, CHANGED, UNCHANGED = "created", "changed", "unchanged"

_MANAGER = "tensorwire"
# Fields that only the API server sets.
_SERVERS_OWN = ("creationTimestamp", "generation", "managedFields", "resourceVersion", "uid")
_KINDS = (
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"),
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"),
    ("scheduling.volcano.sh/v1beta1", "PodGroup"),
    ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    ("batch/v1", "Job"),
    ("v1", "Service"),
    ("v1", "ConfigMap"),
    ("v1", "Secret"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    ("rbac.authorization.k8s.io/v1", "Role"),
    ("v1", "ServiceAccount"),
)
# API groups of objects that every job has.
_OF_EVERYBODY = ("v1", "batch", "networking.k8s.io")
_POLL_S = 1.0


@dataclass(frozen=True)
class Change:
    """The effect of applying a manifest to the cluster, planned or done."""

    kind: str
    name: str
    what: str
    """CREATED, CHANGED or UNCHANGED."""
    difference: str
    """A unified diff of the object in YAML; empty without a difference."""


def with_kept_token(connection: Connection, job: Job) -> Job:
    """The job with the token of its existing Secret, so that submitting it again changes nothing.

    Raises:
        TensorwireError: the Secret may not be read, or is not the Secret of this job.
    """
    if job.token is None:
        return job
    found = connection.find("v1", "Secret", str(job.token_secret))
    if found is None:
        return job
    labels, data = found["metadata"].get("labels") or {}, found.get("data") or {}
    if JOB_LABEL not in labels or "token" not in data:
        raise TensorwireError(
            f"the Secret {job.token_secret} exists and is not of this job: use another --name, or "
            "name a Secret to use with --token-secret"
        )
    return dataclasses.replace(job, token=base64.b64decode(data["token"]).decode())


def preview(connection: Connection, manifests: Sequence[Manifest]) -> list[Change]:
    """Dry run of `submit`: the API server checks all manifests and stores nothing.

    Raises:
        TensorwireError: the cluster would refuse; the message says what to do.
    """
    return [_change(connection, manifest) for manifest in manifests]


def submit(connection: Connection, manifests: Sequence[Manifest]) -> list[Change]:
    """Applies the manifests. Applying the same manifests again changes nothing.

    The API server checks all of them before the first is stored. If one is refused nevertheless,
    the objects that this call created are removed.

    Raises:
        TensorwireError: the cluster refuses; says what to do.
    """
    changes = preview(connection, manifests)
    made: list[Manifest] = []
    try:
        for manifest, change in zip(manifests, changes, strict=True):
            if change.what == UNCHANGED:
                continue
            if change.what == CREATED:
                made.append(manifest)
            apply(connection, manifest)
    except BaseException:
        for manifest in reversed(made):
            with contextlib.suppress(TensorwireError):
                _delete(connection, manifest["apiVersion"], manifest["kind"], manifest)
        raise
    return changes


def scale(connection: Connection, name: str, workers: int) -> int:
    """Lets the first `workers` workers of a job run, without restarting a task.

    Returns how many ran before.

    Raises:
        TensorwireError: there is no such job, it has ended, or its number of workers is fixed.
        UsageError: its cluster specification has fewer workers.
    """
    state = watch.observe(connection, name)
    if state.outcome is not None:
        raise TensorwireError(f"the job {name} has {state.outcome}: submit it again")
    groups = [
        (job, Group("worker", 0, first_task(job), most))
        for job in _objects(connection, "batch/v1", "Job", name)
        if (most := most_tasks(job)) is not None
    ]
    if not groups:
        raise TensorwireError(
            f"the job {name} has a fixed number of workers: submit it with --max-workers"
        )
    most = sum(group.count for _, group in groups)
    if not 1 <= workers <= most:
        raise UsageError(f"{name} can have 1 to {most} workers (its --max-workers), not {workers}")
    resource = connection.resource("batch/v1", "Job")
    for job, group in groups:
        running = group.running(workers)
        spec = {"suspend": not running, "completions": running or 1, "parallelism": running or 1}
        if any(job["spec"].get(field) != value for field, value in spec.items()):
            with connection.explained():
                resource.patch(
                    body={"spec": spec},
                    name=job["metadata"]["name"],
                    namespace=connection.namespace,
                    content_type="application/merge-patch+json",
                )
    return sum(1 for task in state.tasks if task.role == "worker")


def delete(connection: Connection, name: str, timeout_s: float) -> list[str]:
    """Removes all objects of a job, waits until its pods are gone, and returns the removed objects.

    Raises:
        TensorwireError: a permission is missing, or pods still exist after `timeout_s` seconds.
    """
    removed = []
    for api_version, kind in _KINDS:
        for found in _objects(connection, api_version, kind, name):
            # Objects that a JobSet created are deleted with it.
            if not found["metadata"].get("ownerReferences"):
                _delete(connection, api_version, kind, found)
                removed.append(f"{kind} {found['metadata']['name']}")
    deadline = time.monotonic() + timeout_s
    while pods := _objects(connection, "v1", "Pod", name):
        if time.monotonic() > deadline:
            raise TensorwireError(
                f"{len(pods)} pods of {name} still exist after {timeout_s:g} s, the first is "
                f"{pods[0]['metadata']['name']}: see `kubectl describe pod`"
            )
        time.sleep(_POLL_S)
    return removed


def _change(connection: Connection, manifest: Manifest) -> Change:
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    namespace = manifest["metadata"].get("namespace")
    before: Manifest | None = connection.find(manifest["apiVersion"], kind, name, namespace)
    try:
        after = apply(connection, manifest, dry_run=True)
    except TensorwireError as error:
        # To check the rights of a RoleBinding, the API server looks for its Role, also in a dry
        # run. The Role of a new job does not exist yet.
        absent = getattr(error.__cause__, "status", None) == 404
        if before is not None or kind != "RoleBinding" or not absent:
            raise
        after = manifest
    difference = _difference(f"{kind} {name}", before, after)
    what = CREATED if before is None else CHANGED if difference else UNCHANGED
    return Change(kind, name, what, difference)


def apply(connection: Connection, manifest: Manifest, dry_run: bool = False) -> Manifest:
    """Creates or updates one object; returns it as it then is, or would be.

    Raises:
        TensorwireError: the cluster refuses; says what to do.
    """
    resource = connection.resource(manifest["apiVersion"], manifest["kind"])
    options = {"dry_run": "All"} if dry_run else {}
    with connection.explained():
        applied = resource.server_side_apply(
            body=manifest,
            namespace=manifest["metadata"].get("namespace") or connection.namespace,
            field_manager=_MANAGER,
            # The job's own manifests override fields that others have set.
            force_conflicts=True,
            **options,
        )
        return applied.to_dict()  # type: ignore[no-any-return]


def _difference(title: str, before: Manifest | None, after: Manifest) -> str:
    lines = difflib.unified_diff(
        _lines(before) if before else [],
        _lines(after),
        f"{title} (in the cluster)" if before else "/dev/null",
        f"{title} (submitted)",
    )
    return "".join(lines)


def _lines(manifest: Manifest) -> list[str]:
    metadata = {k: v for k, v in manifest["metadata"].items() if k not in _SERVERS_OWN}
    shown = {k: v for k, v in manifest.items() if k != "status"} | {"metadata": metadata}
    if manifest["kind"] == "Secret":  # must not be shown on a terminal
        shown["data"] = dict.fromkeys(shown.get("data") or {}, "(not shown)")
    text: str = yaml.safe_dump(shown, sort_keys=True)
    return text.splitlines(keepends=True)


def _objects(connection: Connection, api_version: str, kind: str, name: str) -> Any:
    try:
        return connection.list(api_version, kind, label_selector=f"{JOB_LABEL}={name}")
    except Withheld:
        if api_version.partition("/")[0] in _OF_EVERYBODY:
            raise
        # The cluster has no such kind, such as JobSet; or the user may not list these objects, and
        # then has not created any.
        return []


def _delete(connection: Connection, api_version: str, kind: str, found: Any) -> None:
    metadata = found["metadata"]
    with connection.explained():
        try:
            connection.resource(api_version, kind).delete(
                name=metadata["name"],
                namespace=metadata.get("namespace") or connection.namespace,
                propagation_policy="Background",
            )
        except API_ERRORS as error:
            if error.status != 404:
                raise
