"""Workers that loop, on shared cores and links: a fluid simulation with SimPy as its kernel.

`worker_step` has what a step is. Around it a worker waits until a batch, which is read ahead, is
there, and in synchronous training until all workers have pushed and the update is made.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from simpy import Container, Environment, Event

from tensorwire.plan.bounds import most_steps_per_s
from tensorwire.plan.job import SYNC
from tensorwire.plan.processor_sharing import Join, SharedCapacity
from tensorwire.plan.worker_step import CORES, LINKS, Phase, Resource, WorkerSteps, WorkItem

# Workers that take equal times would go on in step for ever as they began; real ones drift apart.
_JITTER = 0.1
# The sigma of the lognormal factor on a transfer's time on its links; its mean is 1. Real transfers
# take times that differ, so workers meet at the links by chance. If all took the same time, workers
# would settle in a pattern: either they use one direction of a link together and leave the other
# idle for ever, or they never meet and fill both directions.
_TRANSFER_JITTER = 0.3
_UNCOUNTED = 0.2
"""Share of the steps with which a simulation begins."""

Process = Generator[Event, Any, None]


@dataclass(frozen=True)
class StepParts:
    """The parts of a worker's step, in seconds; a mean over workers and steps."""

    input_s: float
    """Waiting for input."""
    pull_s: float
    """The time from the start of the step until all variables are there."""
    compute_s: float
    push_s: float
    """Until every ps has applied the gradients."""
    others_s: float
    """Synchronous training: waiting for the other workers."""

    @property
    def step_s(self) -> float:
        return self.input_s + self.pull_s + self.compute_s + self.push_s + self.others_s


@dataclass(frozen=True)
class Simulated:
    """The result of a simulation after its warm-up."""

    steps_per_s: float
    """Steps a second, as in `Prediction`."""
    worker_steps_per_s: float
    """Each worker's counted, also where all of them make one."""
    step: StepParts
    busy: Mapping[Resource, float]
    """Share of its time; of alike resources, of the one that stands for them."""


class Simulation:
    """The simulation of one job on one cluster with one side's costs."""

    def __init__(self, worker_steps: WorkerSteps, seed: int = 0) -> None:
        self._worker_steps = worker_steps
        self._random = random.Random(seed)
        self.environment = Environment()
        self._stations: dict[Resource, SharedCapacity] = {}
        self.most_steps_per_s = most_steps_per_s(worker_steps)
        workers = len(worker_steps.workers)
        # Workers begin as they go on, each somewhere in its step. All at once, they would want the
        # same at the same time for long.
        self._round_s = workers / self.most_steps_per_s
        self.is_synchronous = worker_steps.job.training == SYNC
        self.updates = 0
        """Of synchronous training, so far."""
        self._pushed = 0
        self._updated = self.environment.event()

    def run(self, steps: int, on_step: Callable[[], None] = lambda: None) -> Simulated:
        """Until the first worker has taken `steps` steps.

        `on_step` is called at each step of each worker.
        """
        log = _Log(self, steps, len(self._worker_steps.workers), on_step)
        for worker in range(len(self._worker_steps.workers)):
            self.environment.process(self._train(worker, log))
        self.environment.run(until=log.done)
        return log.result()

    def busy_s(self) -> dict[Resource, float]:
        """Busy seconds of each resource so far."""
        return {resource: station.busy_s() for resource, station in self._stations.items()}

    def _train(self, worker: int, log: _Log) -> Process:
        environment, worker_step = self.environment, self._worker_steps.workers[worker]
        yield environment.timeout(self._random.random() * self._round_s)
        batches = self._batches()
        while True:
            began_s = environment.now
            if batches is not None:
                yield batches.get(1)
            started_s = environment.now
            slower = self._spread()
            yield self._phase(worker, worker_step.start, 1.0)
            yield environment.timeout(worker_step.latency_s)
            yield self._at_once([*worker_step.look_up.parts])
            yield self._phase(worker, worker_step.pull, slower)
            pulled_s = environment.now
            yield self._phase(worker, worker_step.compute, slower)
            computed_s = environment.now
            yield self._phase(worker, worker_step.push, slower)
            yield self._at_once([*worker_step.update.parts])
            pushed_s = environment.now
            if self.is_synchronous:
                yield from self._update_together()
            log.step(
                worker,
                StepParts(
                    input_s=started_s - began_s,
                    pull_s=pulled_s - started_s,
                    compute_s=computed_s - pulled_s,
                    push_s=pushed_s - computed_s,
                    others_s=environment.now - pushed_s,
                ),
            )

    def _update_together(self) -> Process:
        """Waits until all workers have pushed, and the last of them has made the update."""
        updated = self._updated
        self._pushed += 1
        if self._pushed == len(self._worker_steps.workers):
            yield self._at_once(self._worker_steps.update())
            self.updates += 1
            self._pushed = 0
            self._updated = self.environment.event()
            updated.succeed()
        yield updated

    def _spread(self) -> float:
        """The random factor on the time of this step's own operations; its mean is 1."""
        return self._lognormal(max(self._worker_steps.job.straggler_sigma, _JITTER))

    def _lognormal(self, sigma: float) -> float:
        """A random number whose mean is 1."""
        return self._random.lognormvariate(-sigma * sigma / 2, sigma)

    def _phase(self, worker: int, phase: Phase, slower: float) -> Event:
        parts = [*phase.parts, *self._worker_steps.worker_cpu(worker, phase, slower)]
        return self._at_once(parts, self._lognormal(_TRANSFER_JITTER))

    def _at_once(self, parts: list[WorkItem], longer: float = 1.0) -> Event:
        """Starts the parts, transfers `longer` times as long; the event comes when all are done."""
        join = Join(self.environment, len(parts) + sum(part.beside is not None for part in parts))
        for part in parts:
            station = self._station(part.resource)
            work = part.work * (longer if part.resource.kind in LINKS else 1.0)
            work -= station.at_once(work, part.count)
            station.submit(work, part.weight, part.limit, part.count, join)
            if part.beside is not None:
                beside = self._station(part.beside)
                in_turn = self._worker_steps.in_turn(part, work)
                beside.submit(in_turn, part.weight, part.limit, part.count, join)
        return join.event

    def _station(self, resource: Resource) -> SharedCapacity:
        station = self._stations.get(resource)
        if station is None:
            factor = self._worker_steps.costs.crowded_factor if resource.kind == CORES else 1.0
            burst = self._worker_steps.burst_bytes(resource)
            station = SharedCapacity(self.environment, resource.capacity, factor, burst)
            self._stations[resource] = station
        return station

    def _batches(self) -> Container | None:
        """The input of one worker, which reads ahead; None: batches are there when wanted."""
        job = self._worker_steps.job
        if not job.input_examples_per_s:
            return None
        # Another batch waits for room in it, so two are read ahead.
        batches = Container(self.environment, capacity=1)
        self.environment.process(self._fill(batches, job.batch_size / job.input_examples_per_s))
        return batches

    def _fill(self, batches: Container, interval_s: float) -> Process:
        while True:
            yield self.environment.timeout(interval_s)
            yield batches.put(1)


class _Log:
    """Counts the steps between the beginning and the first worker's last."""

    def __init__(
        self, simulation: Simulation, steps: int, workers: int, on_step: Callable[[], None]
    ) -> None:
        self.done = simulation.environment.event()
        self._simulation = simulation
        self._steps = steps
        self._uncounted = int(_UNCOUNTED * steps * workers)
        self._on_step = on_step
        self._taken = [0] * workers
        self._all = 0
        self._sums = [0.0] * 5
        self._begin()

    def _begin(self) -> None:
        """Ends the warm-up: results count from now on."""
        self._began_s = self._simulation.environment.now
        self._busy_s = self._simulation.busy_s()
        self._updates = self._simulation.updates

    def step(self, worker: int, parts: StepParts) -> None:
        """A worker has taken one."""
        self._on_step()
        self._all += 1
        self._taken[worker] += 1
        if self._all == self._uncounted:
            self._begin()
        elif self._all > self._uncounted:
            each = dataclasses.astuple(parts)
            self._sums = [a + b for a, b in zip(self._sums, each, strict=True)]
        if self._taken[worker] == self._steps and not self.done.triggered:
            self.done.succeed()

    def result(self) -> Simulated:
        counted = self._all - self._uncounted
        seconds = self._simulation.environment.now - self._began_s
        busy_s = self._simulation.busy_s()
        updates = self._simulation.updates - self._updates
        return Simulated(
            steps_per_s=(updates if self._simulation.is_synchronous else counted) / seconds,
            worker_steps_per_s=counted / seconds,
            step=StepParts(*(total / counted for total in self._sums)),
            busy={
                resource: (total - self._busy_s.get(resource, 0.0)) / seconds
                for resource, total in busy_s.items()
            },
        )
