"""Several predictions at once, on as many cores as there are, where that is worth the processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence

from tensorwire.plan.prediction import Prediction, PredictionRequest

_WORTH_A_PROCESS = 10_000
"""Steps of workers: simulating them takes about a second, and starting a process half of one."""


def answers(
    questions: Sequence[PredictionRequest], on_steps: Callable[[int], None] = lambda steps: None
) -> list[Prediction]:
    """The answer to each question, as `PredictionRequest.answer` gives it.

    `on_steps` is called with the number of steps that have been simulated since its last call.

    Raises:
        UsageError: as `PredictionRequest.answer`.
    """
    processes = min(len(questions), len(os.sched_getaffinity(0)))
    if processes < 2 or min(each.worker_steps for each in questions) < _WORTH_A_PROCESS:
        return [each.answer(lambda: on_steps(1)) for each in questions]
    found = []
    # Spawned: a progress bar has a thread, which a fork would not have.
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, _leave_interrupts_to_the_parent) as pool:
        for question, answer in zip(questions, pool.imap(_answer, questions), strict=True):
            found.append(answer)
            on_steps(question.worker_steps)
    return found


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _answer(question: PredictionRequest) -> Prediction:
    return question.answer()
