"""Processor sharing: cores of a machine, or a link, shared fairly by concurrent jobs.

Processor sharing in virtual time. Jobs that have the same weight and the same limit progress alike,
so for each such group one number grows, the work that each of its jobs has had since the start; a
job is done when that has grown by its work. So what happens costs the number of groups, and the
logarithm of the number of jobs.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from typing import Any

from simpy import Environment, Event

_EPSILON = 1e-9


class Join:
    """Tells when all of several jobs are done."""

    __slots__ = ("_left", "event")

    def __init__(self, environment: Environment, jobs: int) -> None:
        self.event = Event(environment)
        self._left = jobs
        if jobs == 0:
            self.event.succeed()

    def done(self) -> None:
        """Called when one of the group's jobs is done."""
        self._left -= 1
        if self._left == 0:
            self.event.succeed()


class _Group:
    """Jobs alike: `served` is the work that each of them has had since the start."""

    __slots__ = ("count", "limit", "queue", "rate", "served", "weight")

    def __init__(self, weight: float, limit: float) -> None:
        self.weight = weight
        self.limit = limit
        self.count = 0.0
        self.rate = 0.0
        self.served = 0.0
        self.queue: list[tuple[float, int, float, Join]] = []


class SharedCapacity:
    """`capacity` units of work a second: of cores, seconds of CPU; of a link, bytes."""

    def __init__(
        self,
        environment: Environment,
        capacity: float,
        crowded_factor: float = 1.0,
        burst: float = 0.0,
    ) -> None:
        """`crowded_factor`: see `Costs`; 1 for what is no machine. `burst`: work that is done at
        once after a pause long enough."""
        self.capacity = capacity
        self._burst = self._credit = burst
        self._environment = environment
        self._crowded_factor = crowded_factor
        self._groups: dict[tuple[float, float], _Group] = {}
        self._active: list[_Group] = []
        self._last_s = 0.0
        self._busy_s = 0.0
        self._use = 0.0
        self._wake_s = float("inf")
        self._numbers = itertools.count()

    def at_once(self, work: float, count: float) -> float:
        """The part of each of `count` jobs of `work` that is done at once, and counts as done."""
        if not self._burst:
            return 0.0
        self._advance()
        done = min(work, self._credit / count)
        self._credit -= done * count
        self._busy_s += done * count / self.capacity
        return done

    def submit(self, work: float, weight: float, limit: float, count: float, join: Join) -> None:
        """`count` jobs of `work` each (a share of one: see `PsGroups`), as one.

        A job gets `limit` units a second at most, and of what is short as its `weight` is.
        """
        self._advance()
        key = (weight, limit)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(weight, limit)
        if not group.queue:
            group.count = 0.0
            self._active.append(group)
        group.count += count
        heapq.heappush(group.queue, (group.served + work, next(self._numbers), count, join))
        self._share()

    def busy_s(self) -> float:
        """Seconds of all its capacity that were used so far."""
        self._advance()
        return self._busy_s

    def _advance(self) -> None:
        now = self._environment.now
        passed = now - self._last_s
        if passed > 0:
            self._last_s = now
            self._busy_s += passed * self._use
            if self._burst:
                idle = self.capacity * (1.0 - self._use)
                self._credit = min(self._burst, self._credit + passed * idle)
            for group in self._active:
                group.served += group.rate * passed

    def _share(self) -> None:
        """Gives each job its rate, and wakes when the first of them will be done."""
        active = self._active
        wanted = 0.0
        for group in active:
            wanted += group.count * group.limit
        if wanted <= self.capacity:
            self._use = wanted / self.capacity
            for group in active:
                group.rate = group.limit
        elif len(active) == 1:
            self._use = 1.0
            active[0].rate = self._left(wanted) / active[0].count
        else:
            self._use = 1.0
            fill(self._left(wanted), active)
        soonest = min((group.queue[0][0] - group.served) / group.rate for group in active)
        wake_s = self._last_s + max(soonest, 0.0)
        # A timer that is too early does no harm: it looks and waits again.
        if wake_s < self._wake_s:
            self._wake_s = wake_s
            timer = self._environment.timeout(wake_s - self._last_s, wake_s)
            timer.callbacks.append(self._woken)

    def _left(self, wanted: float) -> float:
        """Share of the capacity that each job gets if more is wanted than there is."""
        excess = min(1.0, wanted / self.capacity - 1.0)
        return self.capacity / (1.0 + (self._crowded_factor - 1.0) * excess)

    def _woken(self, timer: Any) -> None:
        if timer.value != self._wake_s:
            return
        self._wake_s = float("inf")
        self._advance()
        emptied = False
        for group in self._active:
            queue = group.queue
            reached = group.served + _EPSILON * (group.limit if group.rate == 0 else group.rate)
            while queue and queue[0][0] <= reached:
                _, _, count, join = heapq.heappop(queue)
                group.count -= count
                join.done()
            emptied = emptied or not queue
        if emptied:
            self._active = [group for group in self._active if group.queue]
        if self._active:
            self._share()
        else:
            self._use = 0.0


def fill(capacity: float, groups: Sequence[_Group]) -> None:
    """Max-min fair rates by weight: who wants less than the fair level leaves the rest to others.

    Sets each group's `rate`, that of one of its jobs.
    """
    left, weights = capacity, sum(group.count * group.weight for group in groups)
    for group in sorted(groups, key=lambda each: each.limit / each.weight):
        group.rate = min(group.limit, group.weight * left / weights)
        left -= group.count * group.rate
        weights -= group.count * group.weight
