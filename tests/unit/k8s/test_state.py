"""The state of a job, as far as it needs no cluster."""

from __future__ import annotations

from tensorwire.k8s.state import FAILED, SUCCEEDED, JobState, TaskState


def test_a_serving_task_that_is_ended_after_a_success_is_no_trouble() -> None:
    ended = TaskState("ps", 0, FAILED, trouble="it failed")
    done = TaskState("worker", 0, SUCCEEDED)
    assert JobState((ended, done), None).all_troubles == ["ps:0: it failed"]
    assert JobState((ended, done), SUCCEEDED).all_troubles == []
