"""One task of a disturbed job: `python survival_task.py`.

The first message names the task, and is answered when its server runs. The chief, which is the
first worker, then trains with a MonitoredTrainingSession. It sends {"step", "sums", "wall_clock_s"}
for every step, {"recovering": text} when its session is restarted, and {"failed": error, "says":
text} when it gives up. After {"do": "stop"} it sends {"stopped": true, "digests": of each ps's
variable} and keeps serving.

Every step reads the whole variable of each ps, computes on every worker, and assigns the sum: v =
sum over workers w of (v * MULTIPLIER + step + w), in 64-bit integers. So the result of a step
depends on all earlier steps, and a step that was lost, repeated or done with other data changes all
later sums.
"""

from __future__ import annotations

import hashlib
import logging
import re
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorwire.bench.experiments.tensors import ServerTask, import_for_user
from tensorwire.bench.lab.channel import Message, TaskEnd

MULTIPLIER = 6364136223846793005
"""Multiplier of a linear congruential generator (Knuth), which mixes all bits."""


def first_values(ps: int, elements: int) -> npt.NDArray[np.int64]:
    """The variable of a ps before the first step."""
    return np.arange(elements, dtype=np.int64) + ps


def digest(value: npt.NDArray[np.int64]) -> str:
    """A digest that differs for any two values of a variable."""
    return hashlib.sha256(value.tobytes()).hexdigest()


def undisturbed(
    ps_tasks: int, workers: int, elements: int
) -> Iterator[list[npt.NDArray[np.int64]]]:
    """Each ps's variable after step 1, 2 and so on, computed without TensorFlow."""
    values = [first_values(ps, elements) for ps in range(ps_tasks)]
    step = 0
    while True:
        with np.errstate(over="ignore"):
            for ps, value in enumerate(values):
                values[ps] = sum(
                    (value * np.int64(MULTIPLIER) + np.int64(step + worker))
                    for worker in range(workers)
                )
        step += 1
        yield [*values]


class _Recoveries(logging.Handler):
    """A log handler that reports the errors from which a session recovers; it only logs them."""

    def __init__(self, channel: TaskEnd) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("An error was raised"):
            self._channel.send({"recovering": cause_of(text.rpartition("Error: ")[2])})


def cause_of(text: str) -> str:
    """The line of an error with its cause, before the name of the failed node."""
    # A step on several tasks reports an error of each; some of them are cancellations.
    roots = re.split(r"^ *(?:\(\d+\) )?(?=[A-Z_]+: )", text, flags=re.MULTILINE)[1:] or [text]
    causes = [root for root in roots if not root.upper().startswith("CANCELLED")]
    lines = [line.strip() for line in (causes or roots)[0].splitlines()]
    node = next((at for at, line in enumerate(lines) if line.startswith("[[{{node")), len(lines))
    headings = ("Additional GRPC error", "Graph execution error:", "From /job:", "=====")
    said = [line for line in lines[:node] if line and not line.startswith(headings)]
    return said[-1] if said else text


def _step(tf: Any, setup: Message) -> tuple[Any, Any]:
    """The fetches of a step (its number and the new sums), and the variables."""
    v1 = tf.compat.v1
    workers, elements = len(setup["spec"]["worker"]), setup["elements"]
    with tf.device("/job:ps/task:0"):
        global_step = v1.train.get_or_create_global_step()
        now = tf.identity(global_step.read_value())
    updates = []
    for ps in range(len(setup["spec"]["ps"])):
        with tf.device(f"/job:ps/task:{ps}"):
            variable = v1.get_variable(
                f"v{ps}", initializer=first_values(ps, elements), use_resource=True
            )
            value = variable.read_value()
        parts = []
        for worker in range(workers):
            with tf.device(f"/job:worker/task:{worker}"):
                parts.append(value * MULTIPLIER + (now + worker))
        with tf.device(f"/job:ps/task:{ps}"):
            updates.append((variable, tf.add_n(parts)))
    # Assign only when all values have arrived, so that a failing step changes either both ps or
    # none, as far as possible.
    with tf.control_dependencies([new for _, new in updates]):
        assigned = [variable.assign(new, read_value=False) for variable, new in updates]
    with tf.control_dependencies(assigned), tf.device("/job:ps/task:0"):
        counted = global_step.assign_add(1, read_value=False)
    with tf.control_dependencies([counted]):
        sums = []
        for ps, (variable, _) in enumerate(updates):
            with tf.device(f"/job:ps/task:{ps}"):
                sums.append(tf.reduce_sum(variable.read_value()))
        with tf.device("/job:ps/task:0"):
            fetches = global_step.read_value(), sums
    return fetches, [variable for variable, _ in updates]


def _train(
    tf: Any, setup: Message, target: str, channel: TaskEnd, stop: threading.Event
) -> list[str]:
    """Trains until `stop`; returns the digests of the variables at the end."""
    v1 = tf.compat.v1
    fetches, variables = _step(tf, setup)
    values = [variable.read_value() for variable in variables]
    config = v1.ConfigProto(operation_timeout_in_ms=setup["step_timeout_ms"])
    # No graph rewrites, so that operations stay on their tasks and tensors cross the wire.
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with v1.train.MonitoredTrainingSession(
        master=target,
        checkpoint_dir=setup["directory"],
        save_checkpoint_steps=setup["save_every"],
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        save_summaries_secs=None,
        log_step_count_steps=None,
        config=config,
    ) as session:
        while not stop.wait(setup["pause_ms"] / 1e3):
            step, sums = session.run(fetches)
            channel.send(
                {
                    "step": int(step),
                    "sums": [int(each) for each in sums],
                    "wall_clock_s": time.time(),
                }
            )
        return [digest(value) for value in session.run(values)]


def _wait_for_stop(channel: TaskEnd, stop: threading.Event) -> None:
    channel.receive()
    stop.set()


def main(channel: TaskEnd) -> None:
    setup = channel.receive() or {}
    tf = import_for_user("tensorflow")
    server = ServerTask(setup["spec"], setup["job"], setup["index"], setup["protocol"])
    tf.get_logger().setLevel(logging.INFO)
    tf.get_logger().addHandler(_Recoveries(channel))
    channel.send({"tensorflow": tf.__version__})
    if (setup["job"], setup["index"]) == ("worker", 0):
        stop = threading.Event()
        threading.Thread(target=_wait_for_stop, args=(channel, stop), daemon=True).start()
        try:
            with tf.Graph().as_default():
                digests = _train(tf, setup, server.target, channel, stop)
        except tf.errors.OpError as error:
            channel.send({"failed": type(error).__name__, "says": cause_of(error.message)})
        else:
            channel.send({"stopped": True, "digests": digests})
        threading.Event().wait()
    else:
        while channel.receive() is not None:
            pass


if __name__ == "__main__":
    try:
        main(TaskEnd())
    except Exception:
        traceback.print_exc()
        sys.exit(1)
