"""The state of a job: pure functions from the API server's lists to tasks, troubles and outcome."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
        """All troubles without repetition, because many tasks often have the same one.

        None once the job has succeeded: its serving tasks are ended then, which looks like a
        failure of theirs.
        """
        if self.outcome == SUCCEEDED:
            return []
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
    jobs = [job for job in jobs if not may_come(job)]
    for job in jobs:
        role = _meta(job, "labels").get(_ROLE, "?")
        first = first_task(job)
        for index in range(first, first + int(job["spec"].get("completions") or 1)):
            ended = condition(job, "Complete") is not None
            tasks.append(_task(role, index, by_task.get((role, index), []), ended))
    order = {"ps": 0, "chief": 1, "evaluator": 3}
    tasks.sort(key=lambda task: (order.get(task.role, 2), task.index))
    return JobState(tuple(tasks), _outcome(jobs), tuple(_not_made(jobs, events)))


def first_task(job: Object) -> int:
    """The index of the first task of a Job."""
    template = job["spec"]["template"]["metadata"]
    return int((template.get("annotations") or {}).get(_FIRST_TASK, 0))


def most_tasks(job: Object) -> int | None:
    """The number of tasks that an elastic Job may have; None if its number is fixed."""
    most = _meta(job, "annotations").get("tensorwire/most-tasks")
    return None if most is None else int(most)


def may_come(job: Object) -> bool:
    """True for workers of which none runs: `k8s scale` may start them."""
    return most_tasks(job) is not None and bool(job["spec"].get("suspend"))


def _meta(thing: Object, what: str) -> Mapping[str, str]:
    return thing["metadata"].get(what) or {}


def condition(thing: Object, kind: str) -> Object | None:
    """The condition of that type if it is true, else None."""
    for each in thing.get("status", {}).get("conditions") or ():
        if each["type"] == kind and each["status"] == "True":
            return each  # type: ignore[no-any-return]
    return None


def _outcome(jobs: Sequence[Object]) -> str | None:
    deciders = [job for job in jobs if _meta(job, "labels").get("tensorwire/decides") == "true"]
    if any(condition(job, "Failed") for job in jobs):
        return FAILED
    if deciders and all(condition(job, "Complete") for job in deciders):
        return SUCCEEDED
    return None


def _task(role: str, index: int, pods: Sequence[Object], ended: bool) -> TaskState:
    if not pods:
        return TaskState(role, index, SUCCEEDED if ended else "absent")
    pod = max(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp") or ""))
    phase = _phase(pod)
    return TaskState(
        role,
        index,
        phase,
        pod=pod["metadata"]["name"],
        node=_node(pod),
        metrics_port=int(_meta(pod, "annotations").get("prometheus.io/port", 9100)),
        restarts=len(pods) - 1 + sum(int(c.get("restartCount") or 0) for c in _containers(pod)),
        trouble=None if phase in ("ready", SUCCEEDED) else _trouble(role, pod),
    )


def _status(pod: Object) -> Object:
    return pod.get("status") or {}


def _node(pod: Object) -> str | None:
    return pod.get("spec", {}).get("nodeName")  # type: ignore[no-any-return]


def _containers(pod: Object) -> list[Object]:
    """The states of its containers; a serving task is an init container."""
    kinds = ("initContainerStatuses", "containerStatuses")
    return [each for kind in kinds for each in _status(pod).get(kind) or ()]


def _phase(pod: Object) -> str:
    """As in `TaskState`."""
    if ended := {"Succeeded": SUCCEEDED, "Failed": FAILED}.get(_status(pod).get("phase", "")):
        return ended
    if any(each["name"] == "task" and each.get("ready") for each in _containers(pod)):
        return "lost" if _is_lost(pod) else "ready"
    return "starting" if _node(pod) else "pending"


def _is_lost(pod: Object) -> bool:
    """True if the controllers report as not ready what its kubelet reported as ready."""
    conditions = _status(pod).get("conditions") or ()
    said = [each["status"] for each in conditions if each["type"] == "Ready"]
    return said not in ([], ["True"]) and all(each.get("ready") for each in _containers(pod))


def _trouble(role: str, pod: Object) -> str | None:
    """Why a pod does not progress, and what to do; None if nothing is wrong."""
    status = _status(pod)
    if _is_lost(pod):
        return (
            f"its node {_node(pod)} does not answer: the task is replaced when the node is back, "
            "or when the cluster's administrator removes the node (`kubectl delete node "
            f"{_node(pod)}`)"
        )
    for each in status.get("conditions") or ():
        if each["type"] == "PodScheduled" and each.get("reason") == "Unschedulable":
            return _unschedulable(role, str(each.get("message") or ""))
    for container in _containers(pod):
        if trouble := _trouble_of_container(role, container):
            return trouble
    if status.get("phase") == "Failed":
        return _short(str(status.get("message") or status.get("reason") or "it failed"))
    return None


def _trouble_of_container(role: str, container: Object) -> str | None:
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
        if job is None or event.get("reason") != "FailedCreate" or condition(job, "Complete"):
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
