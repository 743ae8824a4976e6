"""Clusters of TensorFlow as variants: their tasks, and tensors that a worker assigns to a ps."""

from __future__ import annotations

import functools
import gc
import importlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorwire.bench.frame.experiment import SomeResult, Variant, What
from tensorwire.bench.frame.hosts import THIS_MACHINE, HostPool
from tensorwire.bench.frame.showing import transport_of
from tensorwire.bench.frame.task_host import first_line
from tensorwire.bench.frame.tasks import HostedTask, TaskProcesses, patience_s, request
from tensorwire.bench.frame.variants import Setting, config_arguments
from tensorwire.bench.lab import LocalCluster
from tensorwire.bench.lab.channel import Message
from tensorwire.bench.lab.ports import listen
from tensorwire.engine import data_port, second_data_port
from tensorwire.errors import TensorwireError

GRPCPP = "grpc++"


class PluginTask(HostedTask):
    """A task with TensorFlow and, if needed, the plug-in."""

    def __init__(self, needs_plugin: bool) -> None:
        """Imports TensorFlow and, with `needs_plugin`, the plug-in.

        Raises:
            TensorwireError: one is not installed, or the plug-in cannot be compiled.
        """
        self._tf: Any = import_for_user("tensorflow")
        self._plugin: Any = import_for_user("tensorwire.tf") if needs_plugin else None

    def ready(self) -> Message:
        return {"tensorflow": str(self._tf.__version__)}

    @request
    def wire(self) -> Message:
        """The plug-in's counters; empty on grpc."""
        return dict(self._plugin.stats()) if self._plugin is not None else {}


class ServerTask(PluginTask):
    """A ps or a worker with a `tf.compat.v1.train.Server`."""

    def __init__(
        self,
        spec: Mapping[str, Sequence[str]],
        job: str,
        index: int,
        protocol: str,
        rewrites: Sequence[str] = (),
    ) -> None:
        """Starts the server. `rewrites` (see frame.variants) are for the task's sessions.

        Raises:
            TensorwireError: the port is in use, or TensorFlow cannot start the server.
        """
        address = spec[job][index]
        port = int(address.rpartition(":")[2])
        listen(f":{port}").close()  # raises for a port in use
        if protocol == GRPCPP and second_data_port(port) is None:
            listen(f":{data_port(port)}").close()
        super().__init__(needs_plugin=protocol == GRPCPP or bool(rewrites))
        self._spec = {name: list(addresses) for name, addresses in spec.items()}
        self._job = job
        self._index = index
        self._protocol = protocol
        self._rewrites = tuple(rewrites)
        try:
            self._server = self._tf.compat.v1.train.Server(
                self._spec, job_name=job, task_index=index, protocol=protocol
            )
        except self._tf.errors.OpError as error:
            raise TensorwireError(
                f"cannot start a {protocol} server on {address}: {first_line(error)}"
            ) from error

    @property
    def target(self) -> str:
        """The target string for a session on this server."""
        return str(self._server.target)

    @property
    def _device(self) -> str:
        return f"/job:{self._job}/task:{self._index}"

    def _enter_graph(self) -> None:
        """Makes a new graph the default graph from now on, because hooks and savers use the
        default.
        """
        self._default_graph = self._tf.Graph().as_default()
        self._default_graph.__enter__()

    def _session_config(self, device_filters: Sequence[str] = ()) -> Any:
        """A ConfigProto with the rewrites of this task."""
        if self._rewrites:
            asked_for = config_arguments(self._rewrites)
            return self._plugin.ConfigProto(**asked_for, device_filters=device_filters)
        return self._tf.compat.v1.ConfigProto(device_filters=device_filters)


def import_for_user(module: str) -> Any:
    """Imports a module that the user must install.

    Raises:
        TensorwireError: the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise TensorwireError(f"{module} is not installed for this Python") from error


class TensorTask(ServerTask):
    """A server, and the graphs that were built on it."""

    @functools.cached_property
    def _cases(self) -> dict[str, tuple[Any, Any, Any]]:
        """The session, the op and the checksums of each case."""
        return {}

    @request
    def build(self, case: str, tensors: int, floats: int) -> Message:
        """Makes a session, and an op that assigns `tensors` vectors of `floats` float32 each."""
        tf, v1 = self._tf, self._tf.compat.v1
        # Use the CPU, because on an accelerator the copy to host memory would be measured, too.
        ps, worker = "/job:ps/task:0/device:CPU:0", f"{self._device}/device:CPU:0"
        variables: dict[str, list[Any]] = {ps: [], worker: []}
        totals = []
        with tf.Graph().as_default() as graph:
            for device, of_device in variables.items():
                with tf.device(device):
                    for index in range(tensors):
                        name = f"{case}_{'ps' if device == ps else 'worker'}_{index}"
                        # Random values, drawn at initialization: the graph has no large constant.
                        initial = tf.zeros([floats]) if device == ps else _random(tf, floats)
                        of_device.append(
                            v1.get_variable(name, initializer=initial, use_resource=True)
                        )
                    # Sums of the bits that wrap around: nearly always different for different
                    # tensors.
                    bits = [tf.bitcast(each.read_value(), tf.int32) for each in of_device]
                    totals.append(tf.stack([tf.reduce_sum(each) for each in bits]))
            with tf.device(ps):
                pairs = zip(variables[ps], variables[worker], strict=True)
                assigns = [there.assign(here, read_value=False) for there, here in pairs]
                op = assigns[0] if tensors == 1 else tf.group(*assigns)
            session = v1.Session(self.target, graph=graph, config=self._session_config())
            session.run(v1.global_variables_initializer())
        self._cases[case] = (session, op, totals)
        return {}

    @request
    def run(self, case: str, iters: int) -> Message:
        """Runs `iters` steps; returns the seconds of each, and the CPU seconds of this process."""
        session, op, _ = self._cases[case]
        times = []
        gc.disable()
        cpu = time.process_time()
        try:
            for _ in range(iters):
                begin = time.perf_counter()
                session.run(op)
                times.append(time.perf_counter() - begin)
        finally:
            cpu = time.process_time() - cpu
            gc.enable()
        return {"step_s": times, "cpu_s": cpu}

    @request
    def verify(self, case: str) -> Message:
        """Checks that the ps now has the worker's values."""
        session, _, totals = self._cases[case]
        on_ps, on_worker = session.run(totals)
        return {"equal": bool((on_ps == on_worker).all())}


def _random(tf: Any, floats: int) -> Any:
    return tf.random.uniform([floats], minval=-1.0, maxval=1.0)


@dataclass(frozen=True)
class Tensors:
    """The tensors that one step moves: `count` vectors of `floats` float32 each."""

    name: str
    count: int
    floats: int

    @property
    def data_mb(self) -> float:
        """MB (10^6 bytes) of a step."""
        return self.count * self.floats * 4 / 1e6

    @property
    def build_arguments(self) -> dict[str, Any]:
        """The arguments of TensorTask.build for these tensors."""
        return {"case": self.name, "tensors": self.count, "floats": self.floats}

    def timeout_s(self, steps: int) -> float:
        """A timeout for `steps` steps that only a hanging task exceeds."""
        return patience_s(steps=steps, moved_bytes=steps * self.data_mb * 1e6)


def one_tensor(size_bytes: int) -> Tensors:
    """One float32 tensor of this size."""
    return Tensors(f"size_{size_bytes}", 1, round(size_bytes / 4))


@dataclass(frozen=True)
class Block:
    """Consecutive steps of one variant, without steps of other variants in between."""

    step_s: list[float]
    cpu_s: float


class ClusterTasks(TaskProcesses):
    """All tasks of a cluster with one setting."""

    def __init__(
        self, cluster: LocalCluster, setting: Setting, kinds: Mapping[str, type[HostedTask]]
    ) -> None:
        """`kinds`: the class of each job's tasks."""
        super().__init__(cluster)
        self.setting = setting
        self.protocol = setting.protocol
        self._kinds = kinds

    def start(self) -> None:
        env = self.setting.task_environment()
        for job, addresses in self.cluster.spec.items():
            for index in range(len(addresses)):
                setup = self.setup(job, index)
                self.start_task(f"{job}:{index}", self._kinds[job], env, **setup)

    def setup(self, job: str, index: int) -> Message:
        """The arguments of the task's constructor; here those of a ServerTask."""
        return {
            "spec": self.cluster.spec,
            "job": job,
            "index": index,
            "protocol": self.protocol,
            "rewrites": self.setting.rewrites,
        }


class ClusterVariant(ClusterTasks, Variant[What, SomeResult]):
    """A cluster as a variant, with one task of each job or as many as `counts` has."""

    def __init__(
        self,
        setting: Setting,
        kinds: Mapping[str, type[HostedTask]],
        hosts: HostPool = THIS_MACHINE,
        counts: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(hosts.cluster(counts or dict.fromkeys(kinds, 1)), setting, kinds)
        self.name = setting.name

    def transport(self) -> str | None:
        return transport_of(self.ask(task, "wire") for task in self.processes)


class TensorVariant(ClusterVariant[Tensors, SomeResult]):
    """One ps and one worker that move tensors."""

    first_warm_up_steps = 2
    """Number of steps before the first block of a case."""
    warm_up_steps = 1
    """Number of steps before each block."""

    def __init__(self, setting: Setting, hosts: HostPool = THIS_MACHINE) -> None:
        super().__init__(setting, dict.fromkeys(("ps", "worker"), TensorTask), hosts)
        self._steps = 0
        self.cpu_s: dict[Tensors, float] = {}
        """CPU seconds of both tasks in the measured steps."""

    def build(self, tensors: Tensors) -> None:
        """Makes the variables and the op of `tensors`."""
        self.ask("worker", "build", tensors.timeout_s(4), **tensors.build_arguments)

    def warm_up(self, tensors: Tensors) -> None:
        self.build(tensors)
        self.run(tensors, 1, self.first_warm_up_steps)

    def block(self, tensors: Tensors, steps: int | None) -> list[float]:
        block = self.run(tensors, steps or 1, self.warm_up_steps)
        self.cpu_s[tensors] = self.cpu_s.get(tensors, 0.0) + block.cpu_s
        return block.step_s

    def run(self, tensors: Tensors, steps: int, warm_up: int = 1) -> Block:
        """Runs `warm_up` steps that do not count, and then `steps` measured steps."""
        self._steps += warm_up + steps
        timeout_s = tensors.timeout_s(max(steps, warm_up))
        self.ask("worker", "run", timeout_s, case=tensors.name, iters=warm_up)
        ps_cpu_s = self.ask("ps", "cpu")["cpu_s"]
        ps_host = self.cluster.host("ps", 0)
        before_bytes = ps_host.received_bytes()
        measured = self.ask("worker", "run", timeout_s, case=tensors.name, iters=steps)
        after_bytes = ps_host.received_bytes()
        if (
            before_bytes is not None
            and after_bytes is not None
            and after_bytes - before_bytes < steps * tensors.data_mb * 1e6
        ):
            raise TensorwireError(f"{self.name} did not use the link: its results are invalid")
        ps_cpu_s = self.ask("ps", "cpu")["cpu_s"] - ps_cpu_s
        return Block(measured["step_s"], measured["cpu_s"] + ps_cpu_s)

    def verify(self, tensors: Tensors) -> None:
        """Raises TensorwireError unless the ps has the worker's values, sent over this protocol."""
        if not self.ask("worker", "verify", tensors.timeout_s(4), case=tensors.name)["equal"]:
            raise TensorwireError(
                f"the ps does not have the values that the worker sent over {self.protocol}: "
                "its results are invalid"
            )
        # The results would be invalid if the tensors used another path.
        arrived = self.arrived_tensors()
        if self.protocol == GRPCPP and arrived < self._steps:
            raise TensorwireError(
                f"only {arrived} tensors of {self._steps} steps arrived over grpc++: "
                "its results are invalid"
            )

    def arrived_tensors(self) -> int:
        """Tensors that the ps has received over grpc++ so far."""
        wire = self.ask("ps", "wire")
        return int(wire.get("recv_tensors", 0)) + int(wire.get("pushed_tensors", 0))
