"""`bench train` and `demo`: steps and examples per second of a model, trained by ps and workers.

Each variant has its own cluster. All clusters run at the same time, but only one trains at a time,
in turns of a few seconds. So other load on the machine affects all of them equally, and ratios are
valid even on a noisy machine. The first turn of each is a warm-up and is not counted.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import socket
import statistics as stdlib_statistics
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from tensorwire.bench.experiments.tensors import ClusterVariant, ServerTask, import_for_user
from tensorwire.bench.frame import statistics
from tensorwire.bench.frame.columns import Column
from tensorwire.bench.frame.experiment import Case, Experiment, Variant, rounds_option
from tensorwire.bench.frame.hosts import HostPool
from tensorwire.bench.frame.options import experiment_command
from tensorwire.bench.frame.record import Ratio, Record, Result, words
from tensorwire.bench.frame.showing import times
from tensorwire.bench.frame.statistics import Rounds
from tensorwire.bench.frame.tasks import Unwatched, Watcher, request
from tensorwire.bench.frame.variants import EXACT_REWRITES, Setting
from tensorwire.bench.lab.channel import Message
from tensorwire.bench.models import MODELS, examples, training
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.options import option
from tensorwire.plugin.tensorflow_install import check_installed
from tensorwire.report.section import Section

_EVALUATION_BATCH = 8192
_START_DEADLINE_S = 60
_REPLY_TIMEOUT_S = 300.0
_SLOWEST_STEP_S = 5.0
_VARIABLES, _TFRA = "variables", "tfra"
_TFRA_MODULE = "tensorflow_recommenders_addons"
_ESTABLISHED = 1 << 1  # linux/tcp_states.h
_INET_DIAG_INFO = 1 << 1  # linux/inet_diag.h


# --- the tasks ---------------------------------------------------------------------


def received_bytes(ports: Collection[int]) -> int | None:
    """Payload bytes received so far, at both ends, on this machine's established connections.

    The kernel counts them. So traffic of gRPC, which has no counters of its own, is measured as
    that of any other transport, without the traffic of other programs. None without pyroute2, and
    where the kernel does not report it: some container sandboxes refuse the request.

    Counts a TCP connection if one of its ports is in ``ports``. With both ends on this machine,
    every byte is counted once. Closed connections are not counted, so compute differences only over
    periods in which no connection was closed.
    """
    try:
        from pyroute2 import DiagSocket
        from pyroute2.netlink.exceptions import NetlinkError
    except ImportError:
        return None
    wanted, received = frozenset(ports), 0
    asked = {"states": _ESTABLISHED, "extensions": _INET_DIAG_INFO}
    try:
        with DiagSocket() as diag:
            for family in (socket.AF_INET, socket.AF_INET6):
                for connection in diag.get_sock_stats(family=family, **asked):
                    info = connection.get_attr("INET_DIAG_INFO")
                    if info and wanted & {connection["idiag_sport"], connection["idiag_dport"]}:
                        received += info["tcpi_bytes_received"]
    except (OSError, NetlinkError):
        return None
    return received


def network() -> str:
    """The kernel and the network namespace whose connections this process sees."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/net').readlink()}"


class TrainTask(ServerTask):
    """A ps, or the base of a worker."""

    def build_model(
        self, name: str, file: Path, batch_size: int, seed: int, tables: str = _VARIABLES
    ) -> training.Graph:
        """Builds a model in the default graph, with its variables and tables on the ps."""
        tf, v1 = self._tf, self._tf.compat.v1
        # Each worker has its own order of batches, which is the same for every protocol.
        v1.set_random_seed(seed + self._index)
        cluster = tf.train.ClusterSpec(self._spec)
        with v1.device(v1.train.replica_device_setter(worker_device=self._device, cluster=cluster)):
            model = MODELS[name]
            record = training.endless(tf, model, file, batch_size)
            growing = range(cluster.num_tasks("ps") if tables == _TFRA else 0)
            tables_on = [f"/job:ps/task:{index}/device:CPU:0" for index in growing]
            return training.build(tf, model, record, batch_size, tables_on)

    def training_session(self, checkpoint_directory: str = "") -> Any:
        """Opens a session; that of the chief, the first worker, initializes the variables."""
        return self._tf.compat.v1.train.MonitoredTrainingSession(
            master=self.target,
            is_chief=self._index == 0,
            checkpoint_dir=checkpoint_directory or None,
            config=self._session_config(["/job:ps", self._device]),
            save_summaries_steps=None,
            save_summaries_secs=None,
            log_step_count_steps=None,
            max_wait_secs=_START_DEADLINE_S,
        )

    @request
    def stats(self) -> Message:
        """The plug-in's counters, and the bytes that the job's gRPC connections received here."""
        ports = [int(each.rpartition(":")[2]) for job in self._spec.values() for each in job]
        return {**self.wire(), "grpc_bytes": received_bytes(ports), "network": network()}


class GrowingPs(TrainTask):
    """A ps with tables of tensorflow-recommenders-addons."""

    def ready(self) -> Message:
        import_for_user(_TFRA_MODULE)  # its operations and kernels
        return super().ready()


class TrainWorker(TrainTask):
    """A worker: a training session and its model."""

    def __init__(
        self,
        spec: Mapping[str, Sequence[str]],
        job: str,
        index: int,
        protocol: str,
        rewrites: Sequence[str],
        model: str,
        tables: str,
        batch_size: int,
        seed: int,
        data: str,
        train_file: str,
        held_out_file: str,
        checkpoint_directory: str,
    ) -> None:
        """Starts the server and builds the model.

        Args:
            data: the user's file; empty for the model's own data.
            train_file: empty if the worker must make its own file.
            checkpoint_directory: empty for no checkpoints.
        """
        super().__init__(spec, job, index, protocol, rewrites)
        self._session: Any = None
        self._held_out_file = held_out_file
        self._checkpoint_directory = checkpoint_directory
        self._inputs = MODELS[model].inputs
        self._enter_graph()
        file = Path(train_file) if train_file else self._made_train_file(model, data)
        self._model = self.build_model(model, file, batch_size, seed, tables)

    def _made_train_file(self, model: str, data: str) -> Path:
        """This worker's examples, made here because the measuring process is on another machine."""
        directory = Path(tempfile.mkdtemp())  # in the cluster's directory, which removes it
        both = MODELS[model].examples(Path(data) if data else None)
        files = examples.write(directory, len(self._spec["worker"]), *both)
        return files.train[self._index]

    @request
    def open(self) -> Message:
        self._session = self.training_session(self._checkpoint_directory)
        return {}

    @request
    def run(self, steps: int) -> Message:
        """Runs steps; returns the steps of a second."""
        fetches = [self._model.train, self._model.loss]
        started = time.perf_counter()
        for _ in range(steps):
            self._session.run(fetches)
        return {"steps_per_s": steps / (time.perf_counter() - started)}

    @request
    def trace(self) -> Message:
        """Counts the calls of one step, and the operations on the busiest ps.

        On grpc, TensorFlow logs each RecvTensor of a traced step. In addition there are one
        RunGraph and one CleanupGraph for each other task of the step.
        """
        v1 = self._tf.compat.v1
        metadata = v1.RunMetadata()
        self._session.run(
            [self._model.train, self._model.loss],
            options=v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE),
            run_metadata=metadata,
        )
        devices = metadata.step_stats.dev_stats
        received = 0
        operations = dict.fromkeys((d.device.partition("/device:")[0] for d in devices), 0)
        for device in devices:
            calls = sum(node.node_name == "RecvTensor" for node in device.node_stats)
            received += calls
            task = device.device.partition("/device:")[0]
            operations[task] += len(device.node_stats) - calls
        remote = operations.keys() - {f"/job:worker/replica:0/task:{self._index}"}
        of_ps = [count for task, count in operations.items() if task.startswith("/job:ps")]
        return {"calls": received + 2 * len(remote), "ps_operations": max(of_ps, default=0)}

    @request
    def evaluate(self) -> Message:
        """The AUC on the held-out examples with the current variables."""
        held_out = examples.read(Path(self._held_out_file), self._inputs)

        def score(step_context: Any) -> list[Any]:
            # The step context's session runs no hooks, because scoring is not a training step.
            return [
                step_context.session.run(
                    self._model.logits,
                    {self._model.inputs: held_out.inputs[begin : begin + _EVALUATION_BATCH]},
                )
                for begin in range(0, len(held_out.labels), _EVALUATION_BATCH)
            ]

        scores = np.concatenate(self._session.run_step_fn(score))
        return {"auc": examples.auc(scores, held_out.labels), "examples": len(held_out.labels)}

    @request
    def close(self) -> Message:
        """Ends the session; the chief's session writes the last checkpoint."""
        self._session.close()
        return {}


# --- the measurement ---------------------------------------------------------------


@dataclass(frozen=True)
class TrainResult(Result):
    """`bench train` and `demo`: one protocol that trains one model."""

    commands = ("bench train", "demo")
    more_rounds_by = "--steps"
    figure = "steps_per_s"
    of = words("Training, {0.model}")

    protocol: str
    tensor_fuse: bool
    model: str
    steps: int
    steps_per_s: Annotated[float, Column("steps/s", "steps/s", chart="Training steps a second")]
    examples_per_s: Annotated[float, Column("examples/s", show=".0f")]
    auc: Annotated[float, Column("AUC", show=".4f")]
    rpcs_per_step: Annotated[
        float | None, Column("messages/step", "messages", chart="Messages a step")
    ]
    """Calls between tasks (a request with its reply counts once), and pushed tensors."""
    wire_mb_per_step: Annotated[float | None, Column("MB/step")]
    """MB (10^6 bytes) between the tasks, both directions, over TCP or shared memory."""
    ps: int | None = None
    workers: int | None = None
    batch_size: int | None = None
    """`ps`, `workers` and `batch_size` are None in very old records."""
    rewrites: tuple[str, ...] = ()
    """Names of frame.variants; older records have only `tensor_fuse`."""
    ps_operations_per_step: Annotated[float | None, Column("ps ops/step")] = None
    """Operations that the busiest ps executes in a step of one worker."""
    data: str | None = None
    """The file of `--data`; None: the model's own data."""

    @property
    def title(self) -> str:
        model = MODELS[self.model]
        tasks = f": {self.ps} ps, {self.workers} workers, batches of {self.batch_size}"
        return f"{model.kind} on {self.data or model.title}{'' if self.ps is None else tasks}"

    @classmethod
    def section(cls, record: Record[Any]) -> Section:
        headline = " ".join(verdicts(record.results, record.ratios))
        first = record.results[0]
        title = f"Training on {first.data or MODELS[first.model].title}"
        return dataclasses.replace(super().section(record), title=title, headline=headline)


def verdicts(results: Sequence[TrainResult], ratios: Mapping[str, Ratio]) -> list[str]:
    """A sentence for each comparison with stock grpc; empty if grpc was not measured."""
    of = {result.name: result for result in results}
    return [
        _verdict(of[name.removesuffix("/grpc")], of["grpc"], ratio)
        for name, ratio in ratios.items()
        if name.endswith("/grpc")
    ]


def _verdict(first: TrainResult, grpc: TrainResult, ratio: Ratio) -> str:
    messages = ""
    if (
        (first.tensor_fuse or first.rewrites)
        and first.rpcs_per_step is not None
        and grpc.rpcs_per_step
    ):
        fewer = 1.0 - first.rpcs_per_step / grpc.rpcs_per_step
        messages = f" with {fewer:.0%} fewer messages a step," if fewer > 0 else ""
    return (
        f"{first.name} trains {times(ratio)} as fast as grpc,{messages} "
        f"to an AUC of {first.auc:.4f} against {grpc.auc:.4f}."
    )


@dataclass(frozen=True, kw_only=True)
class Train(Experiment[None, TrainResult]):
    """Train a click-through model with ps and workers: steps and examples a second.

    Also measures the AUC on examples that are not used for training, and what a step sends between
    the tasks: MB (of 10^6 bytes) and messages. A message is a call from one task to another, or a
    pushed tensor.
    """

    command = "bench train"
    takes = Experiment.takes | {"rewrites"}
    back_and_forth = True  # a drift of the machine's speed then favours no variant

    model: str = option(
        "flights",
        "flights: the demo's model; ctr: 26 categorical and 200 further small columns, synthetic; "
        "wide_deep, dlrm, deepfm: on Criteo's columns; din: on purchases before; both synthetic.",
        choices=tuple(MODELS),
    )
    data: Path | None = option(
        None,
        "Train on this file instead of synthetic data, at every worker: lines of Criteo's Kaggle "
        "set (train.txt), for wide_deep, dlrm and deepfm.",
        metavar="FILE",
    )
    tables: str = option(
        _VARIABLES,
        "variables of fixed size; tfra: tables of tensorflow-recommenders-addons, which grow.",
        choices=(_VARIABLES, _TFRA),
    )
    steps: int = option(2000, "Training steps of all workers together, for each protocol.", least=1)
    ps: int = option(2, least=1, most=16)
    workers: int = option(2, least=1, most=16)
    batch_size: int = option(256, "Examples of a step of one worker.", least=1, most=65536)
    seed: int = option(
        2013, "Random seed of the variables' first values and of the batches.", least=0
    )
    rounds: int = rounds_option(8)

    def __post_init__(self) -> None:
        if self.data and not MODELS[self.model].read:
            *some, last = (name for name, model in MODELS.items() if model.read)
            of = f"{', '.join(some)} or {last}"
            raise UsageError(f"--data is for --model {of}, not {self.model}")
        if self.steps < 2 * self.workers:
            raise UsageError(
                f"--steps must be at least {2 * self.workers}: "
                "one warm-up step and one measured step for each worker"
            )

    def turns(self) -> list[int]:
        """Steps of each worker in each turn; the first turn is the warm-up."""
        per_worker = self.steps // self.workers
        rounds = min(self.rounds, per_worker - 1)
        turn = per_worker // (rounds + 1)
        return [per_worker - rounds * turn, *[turn] * rounds]

    @property
    def cases(self) -> list[Case[None]]:
        return [Case(self.model, None, self.turns()[1:])]

    def variants(self, hosts: HostPool) -> Sequence[Variant[None, TrainResult]]:
        check_installed()
        if self.tables == _TFRA and not importlib.util.find_spec(_TFRA_MODULE):
            raise TensorwireError(
                "--tables tfra needs tensorflow-recommenders-addons: pip install "
                "tensorflow-recommenders-addons, beside the TensorFlow that it is made for"
            )
        shared: list[examples.ExampleFiles] = []
        return [TrainVariant(each, self, hosts, shared) for each in self.settings]

    def write_examples(self, directory: Path) -> examples.ExampleFiles:
        """Writes the examples of all workers.

        Raises:
            UsageError: a batch is larger than a worker's share.
            TensorwireError: the file of --data is not one of Criteo's.
        """
        directory.mkdir()
        files = examples.write(directory, self.workers, *MODELS[self.model].examples(self.data))
        largest_batch = files.train_examples // self.workers
        if self.batch_size > largest_batch:
            raise UsageError(
                f"--batch-size {self.batch_size} is more than a worker's share of the examples: "
                f"at most {largest_batch} with {self.workers} worker(s)"
            )
        return files


@dataclass(frozen=True, kw_only=True)
class Demo(Train):
    """Train Wide & Deep on real flights: on grpc, grpc++, and grpc++ with all exact rewrites.

    Predicts which flights that left New York in 2013 arrived more than 15 minutes late, with
    parameter servers and asynchronous workers as processes of this machine. The protocols take
    turns; the first turn is warm-up. MB are 10^6 bytes; a message is a call from one task to
    another, or a pushed tensor; the AUC is measured on months that are not used for training.
    --rewrites none leaves out the run with exact rewrites, which is on the last protocol.
    """

    command = "demo"
    takes = Train.takes - {"lab"}
    default_rewrites = (EXACT_REWRITES,)


class TrainVariant(ClusterVariant[None, TrainResult]):
    """One variant's cluster while it trains."""

    def __init__(
        self, setting: Setting, plan: Train, hosts: HostPool, shared: list[examples.ExampleFiles]
    ) -> None:
        """`shared`: the examples of all variants, which the first one to start puts there."""
        ps = GrowingPs if plan.tables == _TFRA else TrainTask
        kinds = {"ps": ps, "worker": TrainWorker}
        super().__init__(setting, kinds, hosts, {"ps": plan.ps, "worker": plan.workers})
        self._plan = plan
        self._shared = shared
        self._watcher: Watcher = Unwatched()
        self._workers = [f"worker:{index}" for index in range(plan.workers)]
        self._measured_steps = 0
        self._traffic = np.zeros(2)

    def start(self) -> None:
        if not self._shared:  # removed with this cluster, even if this process is killed
            self._shared.append(self._plan.write_examples(self.cluster.temporary / "data"))
        super().start()

    def setup(self, job: str, index: int) -> Message:
        setup = super().setup(job, index)
        if job == "ps":
            return setup
        (files,) = self._shared
        # A task on another machine cannot read files of this machine.
        here = self.cluster.host("worker", index).is_this_machine
        # Each ps writes its part of a checkpoint on its own machine, and the chief must find all
        # parts.
        together = self.cluster.is_on_this_machine
        return {
            **setup,
            "model": self._plan.model,
            "tables": self._plan.tables,
            "batch_size": self._plan.batch_size,
            "seed": self._plan.seed,
            "data": str(self._plan.data.resolve()) if self._plan.data else "",
            "train_file": str(files.train[index]) if here else "",
            "held_out_file": str(files.held_out),
            "checkpoint_directory": str(self.cluster.directory / "checkpoint") if together else "",
        }

    def wait_started(self, watcher: Watcher) -> None:
        """Waits for the tasks and opens their sessions, the chief's first, which initializes."""
        super().wait_started(watcher)
        self._watcher = watcher
        for worker in self._workers:
            self.ask(worker, "open", _REPLY_TIMEOUT_S)

    def warm_up(self, what: None) -> None:
        self._watcher.activity(f"{self.name}: warm-up")
        self._train(self._plan.turns()[0])

    def block(self, what: None, steps: int | None) -> list[float]:
        """Runs a turn; returns one mean: seconds per step, over all workers together."""
        self._watcher.activity(f"{self.name}: train")
        before = self._traffic_so_far()
        steps_per_s = self._train(steps or 1)
        self._measured_steps += (steps or 1) * len(self._workers)
        self._traffic += self._traffic_so_far() - before
        if self._traffic[1] == 0:
            raise TensorwireError(
                f"no tensor was sent over {self.protocol}: its results are invalid"
            )
        return [1.0 / steps_per_s]

    def _train(self, steps: int) -> float:
        """Runs `steps` steps on every worker; returns steps per second of all together."""
        timeout_s = _REPLY_TIMEOUT_S + steps * _SLOWEST_STEP_S
        ran = self.ask_all(self._workers, "run", timeout_s, steps=steps)
        return float(sum(each["steps_per_s"] for each in ran))

    def result(self, case: Case[None], rounds: Rounds) -> TrainResult:
        """Scores the held-out examples, writes the last checkpoint and ends the tasks."""
        self._watcher.activity(f"{self.name}: evaluate")
        # The chief's step has a few more calls, because its hooks fetch the global step.
        traces = [self.ask(worker, "trace", _REPLY_TIMEOUT_S) for worker in self._workers]
        wire_bytes, calls = (float(each) for each in self._traffic / self._measured_steps)
        if math.isnan(calls):
            calls = stdlib_statistics.fmean(each["calls"] for each in traces)
        auc = self.ask("worker", "evaluate", _REPLY_TIMEOUT_S)["auc"]
        for worker in self._workers:
            self.ask(worker, "close", _REPLY_TIMEOUT_S)
        for name in reversed(self.processes):  # the workers first
            self.processes[name].stop()
        plan = self._plan
        steps_per_s = 1.0 / statistics.typical_s(rounds)
        return TrainResult(
            protocol=self.protocol,
            tensor_fuse=self.setting.tensor_fuse,
            rewrites=self.setting.rewrites,
            model=plan.model,
            steps=sum(plan.turns()) * plan.workers,
            steps_per_s=steps_per_s,
            examples_per_s=steps_per_s * plan.batch_size,
            auc=auc,
            rpcs_per_step=calls,
            wire_mb_per_step=None if math.isnan(wire_bytes) else wire_bytes / 1e6,
            ps=plan.ps,
            workers=plan.workers,
            batch_size=plan.batch_size,
            ps_operations_per_step=float(max(each["ps_operations"] for each in traces)),
            data=str(plan.data) if plan.data else None,
        )

    def _traffic_so_far(self) -> npt.NDArray[np.float64]:
        """Bytes and calls between the tasks; nan for what is not counted.

        gRPC's bytes come from the kernel, grpc++'s bytes and calls from its own counters.
        """
        of_tasks = [self.ask(task, "stats") for task in self.processes]
        # Tasks in one network see the same connections.
        networks = {each["network"]: each["grpc_bytes"] for each in of_tasks}
        grpc_bytes = sum(math.nan if each is None else each for each in networks.values())
        if self.protocol == "grpc":
            return np.array([grpc_bytes, math.nan])
        data_bytes = sum(int(each["rx_bytes"]) + int(each["read_bytes"]) for each in of_tasks)
        tensors = sum(int(s["served_tensors"]) + int(s["pushed_tensors"]) for s in of_tasks)
        # CleanupGraph follows each RunGraph and has no counter of its own.
        graph_calls = 2 * sum(int(s["run_graphs"]) for s in of_tasks)
        counted = 0 if math.isnan(grpc_bytes) else grpc_bytes
        return np.array([data_bytes + counted, tensors + graph_calls])


train = experiment_command(
    Train,
    """
  tensorwire bench train --model flights
  tensorwire bench train --model ctr --rewrites exact_rewrites,exact_rewrites+bfloat16
  tensorwire bench train --model ctr --tensor-fuse --json train.json
  tensorwire bench train --model dlrm --data train.txt""",
    tasks="several",
)
demo = experiment_command(
    Demo,
    """
  tensorwire demo
  tensorwire demo --protocols grpc++ --steps 600 --json demo.json""",
    fields=("steps", "ps", "workers", "batch_size"),
)
