"""The state of a job: pure functions from the API server's lists to tasks, troubles and outcome."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorwire.metrics.task_metrics import TaskMetrics

SUCCEEDED, FAILED = "succeeded", "failed"

_ROLE, _GROUP = "app.kubernetes.io/component", "tensorwire/group"
_FIRST_TASK = "tensorwire/first-task"
_MEMBER = "batch.kubernetes.io/job-completion-index"
_JOB = "batch.kubernetes.io/job-name"

Object = Mapping[str, Any]


@dataclass(frozen=True)
class TaskState:
    """One task, and the newest of its pods."""

    role: str
    index: int
    phase: str
    """"absent": no pod yet; "pending": no node yet; "starting": not serving yet; "ready"; "lost":
    its node does not answer; SUCCEEDED or FAILED."""
    pod: str | None = None
    node: str | None = None
    restarts: int = 0
    """Restarts of its containers plus replaced pods."""
    metrics_port: int = 9100
    trouble: str | None = None
    """Why the task does not progress, and what to do; None if nothing is wrong."""

    @property
    def name(self) -> str:
        return f"{self.role}:{self.index}"


@dataclass(frozen=True)
class JobState:
    """All tasks, the ps first."""

    tasks: tuple[TaskState, ...]
    outcome: str | None
    """SUCCEEDED or FAILED; None while the job goes on."""
    troubles: tuple[str, ...] = ()
    """Troubles of the job as a whole: pods that could not be created."""

    def count(self, *phases: str) -> int:
        return sum(1 for task in self.tasks if task.phase in phases)

    @property
    def is_up(self) -> bool:
        """True if every task serves or has finished."""
        return bool(self.tasks) and self.count("ready", SUCCEEDED) == len(self.tasks)

    @property
    def all_troubles(self) -> list[str]:
        """All troubles without repetition, because many tasks often have the same one."""
        found = [*self.troubles, *(f"{t.name}: {t.trouble}" for t in self.tasks if t.trouble)]
        first: dict[str, str] = {}
        for trouble in found:
            first.setdefault(trouble.partition(": ")[2] or trouble, trouble)
        return list(first.values())

    @property
    def failed_task(self) -> TaskState | None:
        """The failed task with the most restarts, because other tasks are ended with their Job."""
        failed = [task for task in self.tasks if task.phase == FAILED]
        return max(failed, key=lambda task: task.restarts, default=None)


def job_state(jobs: Sequence[Object], pods: Sequence[Object], events: Sequence[Object]) -> JobState:
    """The state of a job.

    Args:
        jobs, pods: the job's objects, as the API server lists them (plain dictionaries).
        events: all events of the namespace; those of other objects are ignored.
    """
    by_task: dict[tuple[str, int], list[Object]] = {}
    for pod in pods:
        labels, notes = _meta(pod, "labels"), _meta(pod, "annotations")
        member = notes.get(_MEMBER, labels.get(_MEMBER))
        if member is not None and _ROLE in labels:
            index = int(notes.get(_FIRST_TASK, 0)) + int(member)
            by_task.setdefault((labels[_ROLE], index), []).append(pod)
    tasks = []
    for job in jobs:
        role = _meta(job, "labels").get(_ROLE, "?")
        template = job["spec"]["template"]["metadata"]
        first = int((template.get("annotations") or {}).get(_FIRST_TASK, 0))
        for index in range(first, first + int(job["spec"].get("completions") or 1)):
            ended = _condition(job, "Complete") is not None
            tasks.append(_task(role, index, by_task.get((role, index), []), ended))
    order = {"ps": 0, "chief": 1, "evaluator": 3}
    tasks.sort(key=lambda task: (order.get(task.role, 2), task.index))
    return JobState(tuple(tasks), _outcome(jobs), tuple(_not_made(jobs, events)))


def _meta(thing: Object, what: str) -> Mapping[str, str]:
    return thing["metadata"].get(what) or {}


def _condition(thing: Object, kind: str) -> Object | None:
    """The condition of that type if it is true, else None."""
    for condition in thing.get("status", {}).get("conditions") or ():
        if condition["type"] == kind and condition["status"] == "True":
            return condition  # type: ignore[no-any-return]
    return None


def _outcome(jobs: Sequence[Object]) -> str | None:
    deciders = [job for job in jobs if _meta(job, "labels").get("tensorwire/decides") == "true"]
    if any(_condition(job, "Failed") for job in jobs):
        return FAILED
    if deciders and all(_condition(job, "Complete") for job in deciders):
        return SUCCEEDED
    return None


def _task(role: str, index: int, pods: Sequence[Object], ended: bool) -> TaskState:
    if not pods:
        return TaskState(role, index, SUCCEEDED if ended else "absent")
    newest = max(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp") or ""))
    status = newest.get("status", {})
    phase = {"Succeeded": SUCCEEDED, "Failed": FAILED}.get(status.get("phase", ""), "")
    containers = list(_containers(status))
    if not phase:
        node = newest.get("spec", {}).get("nodeName")
        running = any(c["name"] == "task" and c.get("ready") for c in containers)
        phase = "ready" if running else "starting" if node else "pending"
        if running and _is_lost(status, containers):
            phase = "lost"
    return TaskState(
        role,
        index,
        phase,
        pod=newest["metadata"]["name"],
        node=newest.get("spec", {}).get("nodeName"),
        metrics_port=int(_meta(newest, "annotations").get("prometheus.io/port", 9100)),
        restarts=len(pods) - 1 + sum(int(c.get("restartCount") or 0) for c in containers),
        trouble=None if phase in ("ready", SUCCEEDED) else _trouble(role, newest, containers),
    )


def _is_lost(status: Object, containers: Sequence[Object]) -> bool:
    """True if the controllers report a pod as not ready that its kubelet reported as ready."""
    said = [c["status"] for c in status.get("conditions") or () if c["type"] == "Ready"]
    return said not in ([], ["True"]) and all(container.get("ready") for container in containers)


def _containers(status: Object) -> Iterator[Object]:
    for kind in ("initContainerStatuses", "containerStatuses"):
        yield from status.get(kind) or ()


def _trouble(role: str, pod: Object, containers: Sequence[Object]) -> str | None:
    if _is_lost(pod.get("status", {}), containers):
        node = pod["spec"]["nodeName"]
        return (
            f"its node {node} does not answer: the task is replaced when the node is back, or when "
            f"the cluster's administrator removes the node (`kubectl delete node {node}`)"
        )
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return _unschedulable(role, str(condition.get("message") or ""))
    for container in containers:
        state = container.get("state") or {}
        waiting = state.get("waiting") or {}
        reason, said = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
        if reason in ("ErrImagePull", "ImagePullBackOff", "InvalidImageName"):
            return (
                f"the image {container.get('image')} cannot be pulled ({_short(said) or reason}): "
                "check --image, and --pull-secret if the registry requires a login"
            )
        if reason in ("CreateContainerConfigError", "CreateContainerError", "RunContainerError"):
            return f"its container cannot be created: {_short(said) or reason}"
        ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated")
        if ended and container["name"] == "task" and int(ended.get("exitCode") or 0):
            return _death(role, ended)
    status = pod.get("status", {})
    if status.get("phase") == "Failed":
        return _short(str(status.get("message") or status.get("reason") or "it failed"))
    return None


def _unschedulable(role: str, said: str) -> str:
    kind = "ps" if role == "ps" else "worker"
    hint = f"request less (--{kind}-cpu, --{kind}-memory, --workers-per-node) or add nodes"
    if "affinity" in said and "Insufficient" not in said:
        hint = "the layout needs more nodes, or nodes with the labels of `tensorwire k8s label`"
    return f"it fits on no node ({_short(said)}): {hint}"


def _death(role: str, ended: Object) -> str:
    if ended.get("reason") == "OOMKilled":
        kind = "ps" if role == "ps" else "worker"
        return f"it was killed because it exceeded its memory limit: increase --{kind}-memory"
    return f"its script ended with exit status {ended['exitCode']}"


def _not_made(jobs: Sequence[Object], events: Sequence[Object]) -> Iterator[str]:
    """Why Jobs could not create pods, from their events."""
    uids = {job["metadata"].get("uid"): job for job in jobs}
    for event in events:
        job = uids.get((event.get("involvedObject") or {}).get("uid"))
        if job is None or event.get("reason") != "FailedCreate" or _condition(job, "Complete"):
            continue
        name, said = job["metadata"]["name"], _short(str(event.get("message") or ""))
        if "exceeded quota" in said:
            hint = "request less or have the quota of the namespace raised"
        elif "PodSecurity" in said:
            hint = "the namespace forbids a setting of your templates"
        else:
            hint = "see `kubectl describe job`"
        status = job.get("status", {})
        made = int(status.get("active") or 0) + int(status.get("succeeded") or 0)
        if made < int(job["spec"].get("completions") or 1):
            yield f"{name}: its pods cannot be created ({said}): {hint}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 240 else line[:237] + "..."


@dataclass(frozen=True)
class JobMetrics:
    """The progress of a job, from counters of its ps since their start."""

    at_s: float
    steps: int
    """Parts of steps that workers ran on the busiest ps."""
    bytes: int
    """Bytes that all ps sent and received together."""


def counts(task: TaskMetrics) -> tuple[int, int]:
    """Parts of steps that a task ran, and bytes that it sent and received over sockets."""
    moved = sum(peer.tx_bytes + peer.rx_bytes for peer in task.peers)
    return task.run_graphs + task.eager_calls, moved


@dataclass(frozen=True)
class Progress:
    """The progress between two `JobMetrics`."""

    steps: int
    steps_per_s: float
    mb_per_s: float

    @staticmethod
    def between(before: JobMetrics, after: JobMetrics) -> Progress | None:
        """The progress between two readings; None if a ps restarted, or no time passed."""
        elapsed_s = after.at_s - before.at_s
        if elapsed_s <= 0 or after.steps < before.steps or after.bytes < before.bytes:
            return None
        return Progress(
            after.steps,
            (after.steps - before.steps) / elapsed_s,
            (after.bytes - before.bytes) / elapsed_s / 1e6,
        )
