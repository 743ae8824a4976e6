"""A ps or worker that moves tensors when it is told to: `python -m tensorwire.bench.tensor_task`.

The process that started it asks by JSON messages (`lab.channel`). The first is
{"protocol", "spec", "job", "index", "tensor_fuse"} and starts the server; then
{"do": one of `TensorTask.answer`} are answered one by one. A problem that a user
can do something about is answered by {"error": text}; what is unforeseen ends the process with its
traceback in the log.

It measures what a user's script sees: `session.run(op)` of a graph-mode session on the worker's own
server, Python's part of it included. The op assigns the worker's variables to the ps's and returns
nothing. The variables are drawn at random at run time, so that no graph optimizer can turn the
transfer into a constant.
"""

from __future__ import annotations

import gc
import importlib
import resource
import socket
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol

from tensorwire.cluster import data_port
from tensorwire.errors import TensorwireError
from tensorwire.lab.channel import Message, TaskEnd

GRPCPP = "grpc++"


def _cpu_s() -> float:
    """CPU seconds of every thread of this process, user and system."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class TensorTask:
    """The server, and the graphs that were built on it."""

    def __init__(self, setup: Message) -> None:
        """Starts the server of this task.

        Raises:
            TensorwireError: its port is taken, or TensorFlow cannot start it.
        """
        protocol, address = setup["protocol"], setup["spec"][setup["job"]][setup["index"]]
        ports = [int(address.rpartition(":")[2])]
        if protocol == GRPCPP:
            ports.append(data_port(ports[0]))
        for port in ports:
            _check_free(port)
        self._tf: Any = import_for_user("tensorflow")
        self._config: Any = None
        self._plugin: Any = None
        if protocol == GRPCPP or setup["tensor_fuse"]:
            self._plugin = import_for_user("tensorwire.tf")
        if setup["tensor_fuse"]:
            self._config = self._plugin.ConfigProto(tensor_fuse=True)
        v1 = self._tf.compat.v1
        try:
            self._server = v1.train.Server(
                setup["spec"],
                job_name=setup["job"],
                task_index=setup["index"],
                protocol=protocol,
            )
        except self._tf.errors.OpError as error:
            raise TensorwireError(
                f"cannot start a {protocol} server on {address}: {_first_line(error)}"
            ) from error
        self._is_finished: Callable[[], bool] | None = None
        self._cases: dict[str, tuple[Any, Any, Any]] = {}

    @property
    def tensorflow_version(self) -> str:
        return str(self._tf.__version__)

    def build(self, case: str, tensors: int, floats: int) -> Message:
        """A session, and an op that assigns `tensors` vectors of `floats` float32 each."""
        v1 = self._tf.compat.v1
        # The benchmark is about the way between tasks: on an accelerator the way to host memory
        # would be measured too.
        ps, worker = "/job:ps/task:0/device:CPU:0", "/job:worker/task:0/device:CPU:0"
        with self._tf.Graph().as_default() as graph:
            assigns: list[Any] = []
            sums: dict[str, list[Any]] = {ps: [], worker: []}
            for index in range(tensors):
                variables = {}
                for device in (ps, worker):
                    with self._tf.device(device):
                        variables[device] = v1.get_variable(
                            f"{case}_{'ps' if device == ps else 'worker'}_{index}",
                            initializer=_random(self._tf, floats)
                            if device == worker
                            else self._tf.zeros([floats]),
                            use_resource=True,
                        )
                        # Of the bits, and wrapping around: equal only for equal tensors, almost.
                        bits = self._tf.bitcast(variables[device].read_value(), self._tf.int32)
                        sums[device].append(self._tf.reduce_sum(bits))
                with self._tf.device(ps):
                    assigns.append(variables[ps].assign(variables[worker], read_value=False))
            with self._tf.device(ps):
                op = assigns[0] if tensors == 1 else self._tf.group(*assigns)
            totals = []
            for device, parts in sums.items():
                with self._tf.device(device):
                    totals.append(self._tf.stack(parts))
            session = v1.Session(self._server.target, graph=graph, config=self._config)
            session.run(v1.global_variables_initializer())
        self._cases[case] = (session, op, totals)
        return {}

    def run(self, case: str, iters: int) -> Message:
        """Seconds of each of `iters` steps, and the CPU seconds of this process."""
        session, op, _ = self._cases[case]
        times = []
        gc.disable()
        cpu = _cpu_s()
        try:
            for _ in range(iters):
                begin = time.perf_counter()
                session.run(op)
                times.append(time.perf_counter() - begin)
        finally:
            cpu = _cpu_s() - cpu
            gc.enable()
        return {"step_s": times, "cpu_s": cpu}

    def verify(self, case: str) -> Message:
        """Whether the ps now has what the worker has."""
        session, _, totals = self._cases[case]
        on_ps, on_worker = session.run(totals)
        return {"equal": bool((on_ps == on_worker).all())}

    def _finished_mark(self) -> Any:
        """A variable on the ps that the worker initializes when it is done."""
        with self._tf.device("/job:ps/task:0/device:CPU:0"):
            return self._tf.compat.v1.get_variable("finished", initializer=1, use_resource=True)

    def finish(self) -> Message:
        """On the worker: tells the ps that all is done."""
        v1 = self._tf.compat.v1
        with self._tf.Graph().as_default():
            mark = self._finished_mark()
            with v1.Session(self._server.target) as session:
                session.run(mark.initializer)
        return {}

    def finished(self) -> Message:
        """On the ps: whether the worker has called `finish`."""
        if self._is_finished is None:
            v1 = self._tf.compat.v1
            # Without the filter a session waits for every task of the cluster.
            config = v1.ConfigProto(device_filters=["/job:ps"])
            with self._tf.Graph().as_default() as graph:
                op = v1.is_variable_initialized(self._finished_mark())
                session = v1.Session(self._server.target, graph=graph, config=config)
            self._is_finished = lambda: bool(session.run(op))
        return {"finished": self._is_finished()}

    def wire(self) -> Message:
        """The plug-in's own counters; empty under grpc."""
        return dict(self._plugin.stats()) if self._plugin is not None else {}

    def answer(self, message: Message) -> Message:
        arguments = dict(message)
        match arguments.pop("do"):
            case "build":
                return self.build(**arguments)
            case "run":
                return self.run(**arguments)
            case "verify":
                return self.verify(**arguments)
            case "finish":
                return self.finish()
            case "finished":
                return self.finished()
            case "cpu":
                return {"cpu_s": _cpu_s()}
            case "wire":
                return self.wire()
            case other:
                raise ValueError(f"no such request: {other}")


def import_for_user(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise TensorwireError(f"{module} is not installed for this Python") from error


def _first_line(error: Any) -> str:
    """What a user needs of an error of TensorFlow's."""
    # A session puts the lines of the script that made the node before it; under that is the error
    # as the runtime gave it.
    while hasattr(error.__context__, "message"):
        error = error.__context__
    lines = [line.strip() for line in str(error.message).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _random(tf: Any, floats: int) -> Any:
    """Drawn by the device, in the step that initializes: the graph holds no large constant."""
    return tf.random.uniform([floats], minval=-1.0, maxval=1.0)


def _check_free(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As a server binds: connections of an earlier server that linger do not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise TensorwireError(
                f"port {port} is in use on this host: end what listens there, or take another port"
            ) from error


class AnsweringTask(Protocol):
    """A task that answers one request after the other."""

    @property
    def tensorflow_version(self) -> str:
        """As `tf.__version__`."""

    def answer(self, message: Message) -> Message:
        """The answer to a request."""


def serve(make: Callable[[Message], AnsweringTask]) -> None:
    """Makes a task of the first message and answers the others, until there are no more.

    A problem that a user can do something about is answered by {"error": text}.
    """
    end = TaskEnd()
    setup = end.receive()
    if setup is None:
        return
    try:
        task = make(setup)
        end.send({"tensorflow": task.tensorflow_version})
        while (message := end.receive()) is not None:
            end.send(task.answer(message))
    except TensorwireError as error:
        end.send({"error": str(error)})
    except Exception as error:
        if not hasattr(error, "error_code"):  # no error of TensorFlow's
            raise
        traceback.print_exc()
        end.send({"error": f"{type(error).__name__}: {_first_line(error)}"})


if __name__ == "__main__":
    serve(TensorTask)
