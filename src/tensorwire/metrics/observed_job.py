"""All tasks of a job, looked at again and again."""

from __future__ import annotations

from collections.abc import Sequence

from tensorwire.metrics import announce
from tensorwire.metrics.fetch import fetch_all
from tensorwire.metrics.rates import JobRates, job_rates
from tensorwire.metrics.task_metrics import TaskMetrics


class ObservedJob:
    """The tasks at given endpoints, or those of this user on this host that announced theirs."""

    def __init__(self, addresses: Sequence[str] | None = None) -> None:
        self._named = list(addresses) if addresses is not None else None
        self._last: list[TaskMetrics] = []

    def addresses(self) -> list[str]:
        """Where tasks are asked now; those that announce themselves come and go."""
        if self._named is not None:
            return self._named
        return [found.address for found in announce.discover()]

    def figures(self) -> tuple[list[TaskMetrics], dict[str, str]]:
        """What each task counted so far, and of those that do not say it, why."""
        answers = fetch_all(self.addresses())
        figures = [answer.figures for answer in answers if answer.figures is not None]
        return figures, {a.address: a.error for a in answers if a.figures is None}

    def look(self) -> JobRates:
        """What tasks did since the last look; the first one has seen nothing yet."""
        now, unreachable = self.figures()
        rates = job_rates(self._last, now, unreachable)
        self._last = now
        return rates
