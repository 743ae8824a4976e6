"""Rule for workers that complete no step."""

from __future__ import annotations

from collections.abc import Sequence

from tensorwire.doctor.evidence import Awaited, Finding, JobEvidence, TaskUsage
from tensorwire.doctor.rules import rule

_COMPUTES = 0.5  # cores
_MOST_TENSORS = 3  # in a sentence
_URGENT = ("recv", "no session", "initialization", "between steps", "step")


def within_long_step(worker: TaskUsage) -> bool:
    """Whether a worker without a completed step computes: the step may be longer."""
    stall = worker.stall
    busy = worker.cpu_s is not None and worker.cpu_s / worker.seconds >= _COMPUTES
    return stall is not None and stall.state == "step" and busy


@rule("no-step")
def no_step(job: JobEvidence) -> Finding | None:
    """Workers whose endpoints answer, but whose steps do not end."""
    stalled = [w for w in job.workers if w.stall is not None and not within_long_step(w)]
    if not stalled:
        return None
    states = {worker.stall.state for worker in stalled if worker.stall is not None}
    first = next(state for state in _URGENT if state in states)
    names = ", ".join(worker.task for worker in stalled)
    seconds = max(worker.seconds for worker in stalled)
    return Finding(
        title=f"{names} completed no step in the {seconds:.3g} s of this look",
        cost=1.0,
        evidence=tuple(_sentence(worker) for worker in stalled),
        confidence={"no session": "high", "initialization": "high", "recv": "medium"}.get(
            first, "low"
        ),  # type: ignore[arg-type]
        change=_what_to_do(first, stalled, job),
    )


def _sentence(worker: TaskUsage) -> str:
    stall = worker.stall
    assert stall is not None
    cores = "" if worker.cpu_s is None else f", {worker.cpu_s / worker.seconds:.2g} cores used"
    if stall.state == "recv":
        return f"{worker.task} waited the whole time for {_listed(stall.awaited)}."
    if stall.missing:
        return f"{worker.task} waits for {', '.join(stall.missing)}, which does not answer."
    if stall.state == "step":
        awaited = f", waits for {_listed(stall.awaited)}" if stall.awaited else ""
        others = {each.peer: each.name for each in stall.awaited_from_it}
        waiting = "".join(f", and {peer} waits for its {name}" for peer, name in others.items())
        return f"{worker.task} is within a step{awaited}{waiting}{cores}."
    return {
        "initialization": f"{worker.task} opened a session and only checks whether variables are "
        "initialized: it waits for the chief.",
        "no session": f"{worker.task} has executed nothing yet: it opened no session, and no "
        f"coordinator gave it work{cores}.",
        "between steps": f"{worker.task} has an open session but executes nothing in it: it runs "
        f"its own Python code{cores}.",
    }[stall.state]


def _listed(awaited: Sequence[Awaited]) -> str:
    tensors = [f"{each.name or 'a tensor'} of {each.peer}" for each in awaited]
    more = len(tensors) - _MOST_TENSORS
    return ", ".join(tensors[:_MOST_TENSORS]) + (f" and {more} more" if more > 0 else "")


def _what_to_do(state: str, stalled: list[TaskUsage], job: JobEvidence) -> str:
    worker = next(w for w in stalled if w.stall is not None and w.stall.state == state)
    assert worker.stall is not None
    if state == "recv":
        peer = worker.stall.awaited[0].peer
        return (
            f"Find out why {peer} does not make this tensor: a queue or a barrier may wait for "
            "other workers' steps, or a lost task must restart (docs/faults.md)."
        )
    if evaluators := [each for each in worker.stall.missing if each.startswith("evaluator:")]:
        return f"Take {evaluators[0]} out of the cluster: an evaluator serves nobody."
    if missing := ", ".join(worker.stall.missing):
        return (
            f"Start {missing}, or see why it does not answer. If {worker.task} does not need it "
            "(another worker that has ended), leave it out: `tensorwire run --device-filters "
            "auto`, or tensorwire.tf.ConfigProto(cluster=…, job_name=…, task_index=…)."
        )
    if state == "no session":
        seen = ", ".join(task.task for task in job.tasks)
        return (
            f"Check that every task of the cluster runs: this look found {seen}. A session waits "
            f"for each task that it may use; the log of {worker.task} names the missing task."
        )
    if state == "initialization":
        return (
            "Check that the chief (chief:0, or worker:0) runs, and how far it has initialized or "
            "restored the variables."
        )
    if state == "step":
        return (
            "Look longer than a step takes (--seconds 60). If no step ends then, check the input "
            f"of {worker.task} with `py-spy dump` of its process, and the queues in its step."
        )
    return (
        f"Find out what the script of {worker.task} does, with `py-spy dump` of its process or in "
        "its log: it may prepare data for feed_dict, run a hook, or write a checkpoint."
    )
