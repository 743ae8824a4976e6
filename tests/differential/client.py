"""The chief of a cluster, which runs programs: as sessions on a server, or as its own functions.

Started with a channel (tensorwire.bench.lab), as `python -m differential.client`. The first message
says {"spec", "protocol", "plugin"} and is answered when it is connected. Then, one at a time:

{"run": program, "tag": text}: answered by {"outcomes": an outcome for each act}. {"endure":
program, "tag": text}: answered by {"under_way": seconds that a step takes} when a step
    of many has begun. They go on, and begin anew where they fail, until
{"enough": seconds}: answered, once steps are right again or the time is up, by {"right": steps,
    "wrong": [outcomes], "errors": {"a step" or "beginning anew": {class: words of the first}},
    "recovered": whether}.
{"recover": seconds}: connects anew to servers that were replaced; {"recovered": what went wrong}.
{"stats": true}: the plug-in's metrics of this process.

An outcome is ["value", digests of the fetched values] or ["error", class, message]. For several
steps it is ["all", their outcomes]. For a step that may be interrupted it is ["chance", the outcome
without interruption, ["as calm"] or the outcome with interruption, the outcome afterwards].
["raised", class, message] means that the program itself is wrong.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import hashlib
import os
import re
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import cancellation, context

from integration.semantics.server_task import trim
from integration.semantics.support import essence, session_config
from tensorwire.bench.lab.channel import Message, TaskEnd
from tensorwire.plugin.rewrites import EXACT, of_process
from tensorwire.settings import REWRITES

from .program import DEVICES, PATIENCE, Act, Program
from .tensors import TABLE_VARIABLES, Tensors

tf1 = tf.compat.v1

Outcome = list[Any]

STEP_TIMEOUT_MS = round(30_000 * PATIENCE)
STUCK_TIMEOUT_MS = 700
"""Deadline of a step that cannot end. Mostly long enough for all tasks to begin."""
RETRY_S = 0.05
RIGHT_AGAIN = 5
ENDURED_STEPS = 4

# It is random which task's error comes first, how other tasks report it, and which parts of the
# step are cancelled because of it.
_AROUND_WORDS = re.compile(r"^(\(\d+\) )?([A-Z_]+: +)?| \[Op:[^\]]*\]( name:.*)?$")
_NO_WORDS = re.compile(
    r"(File |Detected at node|Node: |From /job:).*|=+"
    r"|\d+ (root error\(s\) found|(successful|derived) .*)\."
    r"|\[\[[^{]*\]\]|\[\[\{\{node \S*#\}\}\]\]|<stack traces unavailable>"
    r"|Function was cancelled before it was started|RecvFromRemoteAsync is cancelled\."
    r"|EagerClusterFunctionLibraryRuntime::Run"
)
_LOGS = "Recent warning and error logs:"  # includes logs of other steps
_CLOSED = "A session is not created yet"
"""The client's message for a step that begins after its session was closed."""
_RUNS_OWN = re.compile(r"\d+\.\d+\.\d+\.\d+:\d+|program-\d+|__inference_\w+|_S?\d+\b")


def outcome(act: Callable[[], Sequence[Any]]) -> Outcome:
    try:
        return ["value", [_digest(value) for value in act()]]
    except tf.errors.OpError as error:
        if _CLOSED in error.message:
            return ["error", "RuntimeError", _CLOSED]
        return ["error", type(error).__name__, _words(error)]
    except RuntimeError as error:  # the Python session's error if it was closed meanwhile
        return ["error", type(error).__name__, str(error)]


def _words(error: tf.errors.OpError) -> str:
    """The error's message, without places in the source and parts that depend on the run."""
    if isinstance(error, tf.errors.CancelledError):
        return ""  # also on gRPC, the error of any cancelled part may be reported
    lines = set()
    for line in essence(error.message.partition(_LOGS)[0]).splitlines():
        text = _AROUND_WORDS.sub("", _RUNS_OWN.sub("#", line.strip()))
        if text and not _NO_WORDS.fullmatch(text):
            lines.add(text)
    return "\n".join(sorted(lines))


def _digest(value: Any) -> str:
    array = np.asarray(value)
    data = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
    return f"{array.dtype}{list(array.shape)} {hashlib.sha256(data).hexdigest()[:16]}"


class Step:
    """A step in its own thread."""

    def __init__(self, act: Callable[[], Sequence[Any]]) -> None:
        self._outcome: Outcome = []
        self.begun = threading.Event()

        def run() -> None:
            self.begun.set()
            self._outcome = outcome(act)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def outcome(self) -> Outcome:
        self._thread.join()
        return self._outcome


class Sessions:
    """A program as a graph of TensorFlow 1, run by a session on one of the servers."""

    def __init__(self, program: Program, tag: str, target: str) -> None:
        self._program = program
        self._tag = tag
        self._target = target
        was_v2 = tf1.control_flow_v2_enabled()
        (tf1.enable_control_flow_v2 if program.control_flow_v2 else tf1.disable_control_flow_v2)()
        try:
            with tf.Graph().as_default() as self._graph:
                self._number = tf1.placeholder(tf.int32, [])
                tensors = Tensors(program, tag, self._number)
                self._fetches = [tensors.fetches(each) for each in program.wanted]
                self._gate = tensors.gate()
                self._initializers = tf1.global_variables_initializer()
        finally:
            (tf1.enable_control_flow_v2 if was_v2 else tf1.disable_control_flow_v2)()
        self._session: Any = None

    def begin(self) -> None:
        config = session_config(STEP_TIMEOUT_MS, share_cluster_devices_in_session=True)
        config.device_filters.extend(["/job:ps", "/job:worker"])
        if self._program.optimized:
            config.graph_options.rewrite_options.disable_meta_optimizer = False
        if self._program.rewrites and _plugin:
            rewriting = _plugin.ConfigProto(**dict.fromkeys(self._program.rewrites, True))
            rewriting.MergeFrom(config)
            config = rewriting
        self._session = tf1.Session(self._target, self._graph, config)
        self._session.run(self._initializers)

    def step(
        self, number: int, wanted: int, *, stuck: bool = False, timeout_ms: int | None = None
    ) -> Callable[[], list[Any]]:
        session = self._session
        fetches = [*self._fetches[wanted], *([self._gate] if stuck else [])]
        options = None if timeout_ms is None else tf1.RunOptions(timeout_in_ms=timeout_ms)
        return lambda: session.run(fetches, {self._number: number}, options=options)  # type: ignore[no-any-return]

    def partial(self, number: int, wanted: int) -> Callable[[], list[Any]]:
        """A step whose fetches are fetched in two parts."""
        fetches = self._fetches[wanted]
        first = (len(fetches) + 1) // 2

        def act() -> list[Any]:
            handle = self._session.partial_run_setup(fetches, [self._number])
            found = self._session.partial_run(handle, fetches[:first], {self._number: number})
            if fetches[first:]:
                found += self._session.partial_run(handle, fetches[first:])
            return found  # type: ignore[no-any-return]

        return act

    def cancellable(
        self, number: int, wanted: int, *, stuck: bool
    ) -> tuple[Callable[[], list[Any]], Callable[[], None]]:
        """A step, and a function that cancels it by closing its session."""
        return self.step(number, wanted, stuck=stuck), self._session.close

    def begin_anew(self) -> None:
        with contextlib.suppress(tf.errors.OpError):
            self.end()
        self.begin()

    def end(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            session.close()

    def forget(self) -> None:
        """Removes the program's resources in the servers."""
        self.end()
        tf1.Session.reset(self._target, [self._tag])


_INHERITED = tuple(of_process(os.environ))
"""The rewrites of this process, beside those of a program."""


class Functions:
    """A program as functions of TensorFlow 2, or operation by operation."""

    def __init__(self, program: Program, tag: str, connect: Callable[[], None]) -> None:
        self._program = program
        self._tag = tag
        self._connect = connect
        self._functions: dict[tuple[int, bool], Any] = {}

    def begin(self) -> None:
        # A function is rewritten when it is first run, in the process that calls it.
        asked_for = (EXACT if each == "exact_rewrites" else each for each in self._program.rewrites)
        os.environ[REWRITES] = ",".join((*_INHERITED, *asked_for))

    def _function(self, wanted: int, stuck: bool) -> Any:
        if (wanted, stuck) not in self._functions:

            @tf.function(autograph=False, input_signature=[tf.TensorSpec([], tf.int32)])
            def step(number: Any) -> list[Any]:
                tensors = Tensors(self._program, self._tag, number)
                fetches = tensors.fetches(self._program.wanted[wanted])
                return [*fetches, *([tensors.gate()] if stuck else [])]

            self._functions[wanted, stuck] = step.get_concrete_function()
        return self._functions[wanted, stuck]

    def step(
        self, number: int, wanted: int, *, stuck: bool = False, timeout_ms: int | None = None
    ) -> Callable[[], list[Any]]:
        assert timeout_ms is None
        if self._program.mode == "eager":

            def act() -> list[Any]:
                tensors = Tensors(self._program, self._tag, tf.constant(number))
                return [each.numpy() for each in tensors.fetches(self._program.wanted[wanted])]

            return act
        function = self._function(wanted, stuck)
        return lambda: [each.numpy() for each in function(tf.constant(number))]

    def cancellable(
        self, number: int, wanted: int, *, stuck: bool
    ) -> tuple[Callable[[], list[Any]], Callable[[], None]]:
        manager = cancellation.CancellationManager()
        function = manager.get_cancelable_function(self._function(wanted, stuck))
        return (
            lambda: [each.numpy() for each in function(tf.constant(number))],
            manager.start_cancel,
        )

    def begin_anew(self) -> None:
        self._connect()

    def end(self) -> None:
        pass

    def forget(self) -> None:
        """Removes the program's resources in the servers, which know them only by name."""
        for index, node in enumerate(self._program.nodes):
            name = f"{self._tag}-{index}"
            names = {
                "variable": [name],
                "counter": [name],
                "table": [f"{name}-{number}" for number in range(TABLE_VARIABLES)],
            }.get(node.kind, [])
            with tf.device(node.devices[1]):
                for each in names:
                    handle = tf.raw_ops.VarHandleOp(
                        dtype=tf.int64, shape=None, container=self._tag, shared_name=each
                    )
                    tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)
        self._functions.clear()
        gc.collect()


_plugin: Any = None


class Chief:
    def __init__(self, spec: dict[str, list[str]], protocol: str) -> None:
        self._spec = spec
        self._protocol = protocol
        self._endured: Endured | None = None
        tf.config.experimental_connect_to_cluster(
            tf.train.ClusterSpec(self._spec),
            job_name="chief",
            task_index=0,
            protocol=self._protocol,
            make_master_device_default=False,
        )
        self._use_all()  # the chief does not serve before TensorFlow's context is used

    def connect(self) -> None:
        """Connects to servers that were replaced, as a ClusterCoordinator does."""
        context.context().update_server_def(context.get_server_def())

    def _runner(self, program: Program, tag: str) -> Sessions | Functions:
        if program.mode == "session":
            job, _, index = program.master.partition(":")
            return Sessions(program, tag, f"grpc://{self._spec[job][int(index)]}")
        return Functions(program, tag, self.connect)

    def answer(self, message: Message) -> Message:
        try:
            return self._answer(message)
        except Exception as error:
            traceback.print_exc()
            return {"error": f"{type(error).__name__}: {error}"}

    def _answer(self, message: Message) -> Message:
        if "run" in message:
            return {"outcomes": self._run(Program.from_json(message["run"]), message["tag"])}
        if "endure" in message:
            program = Program.from_json(message["endure"])
            self._endured = Endured(self._runner(program, message["tag"]))
            return {"under_way": self._endured.under_way()}
        if "enough" in message:
            assert self._endured is not None
            endured, self._endured = self._endured, None
            return endured.end(message["enough"])
        if "stats" in message:
            return {"stats": _plugin.stats() if _plugin else None}
        if "trim" in message:
            trim()
            return {"trimmed": True}
        return {"recovered": self._recover(message["recover"])}

    def _run(self, program: Program, tag: str) -> list[Outcome]:
        try:
            runner = self._runner(program, tag)
            runner.begin()
            try:
                return [_do(runner, act) for act in program.acts]
            finally:
                runner.forget()
        except Exception as error:
            return [["raised", type(error).__name__, str(error)[-1000:]]] * len(program.acts)

    def _recover(self, limit_s: float) -> str:
        """Repeats steps until they succeed; returns the error of the last attempt, or ""."""
        deadline = time.monotonic() + limit_s
        while (found := outcome(self._use_again))[0] == "error" and time.monotonic() < deadline:
            time.sleep(RETRY_S)
        return ": ".join(found[1:]) if found[0] == "error" else ""

    def _use_again(self) -> list[Any]:
        self.connect()
        return self._use_all()

    def _use_all(self) -> list[Any]:
        sums = []
        for device in DEVICES:
            with tf.device(device):
                sums.append((tf.constant(1) + tf.constant(1)).numpy())
        return sums


def _do(runner: Sessions | Functions, act: Act) -> Outcome:
    number, wanted = act.steps[0], act.wanted
    if act.kind == "run":
        return outcome(runner.step(number, wanted))
    if act.kind == "partial":
        assert isinstance(runner, Sessions)
        return outcome(runner.partial(number, wanted))
    if act.kind == "together":
        steps = [Step(runner.step(each, wanted)) for each in act.steps]
        return ["all", *[step.outcome() for step in steps]]
    if act.kind == "stuck deadline":
        return outcome(runner.step(number, wanted, stuck=True, timeout_ms=STUCK_TIMEOUT_MS))
    if act.kind == "stuck cancel":
        found = _cancelled(runner, number, wanted, STUCK_TIMEOUT_MS / 1e3 * act.moment, stuck=True)
        runner.begin_anew()
        return found
    began = time.monotonic()
    calm = outcome(runner.step(number, wanted))
    moment_s = (time.monotonic() - began) * act.moment
    if act.kind == "deadline":
        timeout_ms = max(1, int(moment_s * 1e3))
        found = outcome(runner.step(number, wanted, timeout_ms=timeout_ms))
    else:
        found = _cancelled(runner, number, wanted, moment_s, stuck=False)
        runner.begin_anew()
    later = outcome(runner.step(number, wanted))
    return ["chance", calm, ["as calm"] if found == calm else found, later]


def _cancelled(
    runner: Sessions | Functions, number: int, wanted: int, moment_s: float, *, stuck: bool
) -> Outcome:
    act, cancel = runner.cancellable(number, wanted, stuck=stuck)
    step = Step(act)
    step.begun.wait()
    time.sleep(moment_s)
    cancel()
    return step.outcome()


class Endured:
    """Steps that are repeated regardless of their outcome, with a new start after a failure."""

    def __init__(self, runner: Sessions | Functions) -> None:
        self._runner = runner
        self._runner.begin()
        self._calm = [outcome(runner.step(number, 0)) for number in range(ENDURED_STEPS)]
        began = time.monotonic()
        self._calm_again = [outcome(runner.step(number, 0)) for number in range(ENDURED_STEPS)]
        self._step_s = (time.monotonic() - began) / ENDURED_STEPS
        self._right = 0
        self._right_in_a_row = 0
        self._wrong: list[Outcome] = []
        self._errors: dict[str, dict[str, str]] = {"a step": {}, "beginning anew": {}}
        self._changed = threading.Condition()
        self._enough = False
        if self._calm_again != self._calm:
            self._wrong += [*self._calm, *self._calm_again]
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        self._thread.start()

    def under_way(self) -> float:
        """Waits until the third step or a later one has begun."""
        with self._changed:
            self._changed.wait_for(lambda: self._right + len(self._errors["a step"]) > 2)
        return self._step_s

    def _go_on(self) -> None:
        number = 0
        is_new = False
        while not self._enough:
            number = (number + 1) % ENDURED_STEPS
            where = "beginning anew"
            if is_new:
                found = outcome(self._begin_anew)
                is_new = found[0] != "value"
            if not is_new:
                where = "a step"
                found = outcome(self._runner.step(number, 0))
            with self._changed:
                if found[0] == "error":
                    self._right_in_a_row = 0
                    self._errors[where].setdefault(found[1], found[2])
                elif found != self._calm[number]:
                    self._wrong.append(found)
                else:
                    self._right += 1
                    self._right_in_a_row += 1
                self._changed.notify_all()
            if found[0] == "error":
                is_new = True
                time.sleep(RETRY_S)

    def _begin_anew(self) -> list[Any]:
        self._runner.begin_anew()
        return []

    def end(self, limit_s: float) -> Message:
        with self._changed:
            self._right_in_a_row = 0
            recovered = self._changed.wait_for(
                lambda: self._right_in_a_row >= RIGHT_AGAIN or self._wrong, limit_s
            )
            self._enough = True
        self._thread.join()
        with contextlib.suppress(tf.errors.OpError):
            self._runner.forget()
        return {
            "right": self._right,
            "wrong": self._wrong,
            "errors": self._errors,
            "recovered": bool(recovered),
        }


def main() -> None:
    global _plugin  # noqa: PLW0603
    end = TaskEnd()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # writes the stacks of all threads to the log
    setup = end.receive() or {}
    if setup["plugin"]:
        import tensorwire.tf

        _plugin = tensorwire.tf
    chief = Chief(setup["spec"], setup["protocol"])
    end.send({"ready": True})
    while (message := end.receive()) is not None:
        end.send(chief.answer(message))


if __name__ == "__main__":
    main()
