"""How fast a job trains, from what its tasks serve at two moments."""

from __future__ import annotations

from dataclasses import dataclass

from tensorwire.metrics.task_metrics import TaskMetrics


@dataclass(frozen=True)
class Figures:
    """What the ps of a job say about its progress; counts from their start."""

    at_s: float
    steps: int
    """Parts of steps that workers ran on the ps that ran most."""
    bytes: int
    """That all ps moved, in and out."""


def counts(task: TaskMetrics) -> tuple[int, int]:
    """Parts of steps that a task ran, and bytes that it moved over sockets."""
    moved = sum(peer.tx_bytes + peer.rx_bytes for peer in task.peers)
    return task.run_graphs + task.eager_calls, moved


@dataclass(frozen=True)
class Progress:
    """Rates between two Figures."""

    steps: int
    steps_per_s: float
    mb_per_s: float

    @staticmethod
    def between(before: Figures, after: Figures) -> Progress | None:
        """None where a ps started again between them, or no time passed."""
        elapsed_s = after.at_s - before.at_s
        if elapsed_s <= 0 or after.steps < before.steps or after.bytes < before.bytes:
            return None
        return Progress(
            after.steps,
            (after.steps - before.steps) / elapsed_s,
            (after.bytes - before.bytes) / elapsed_s / 1e6,
        )
