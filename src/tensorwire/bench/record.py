"""What a benchmark found, as plain data, and the JSON that scripts read.

The JSON is an interface: fields are added, never renamed. Sizes are in MB and GB of 10^6 and 10^9
bytes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Generic, TypeVar

import tensorwire
from tensorwire.documents import from_document
from tensorwire.errors import TensorwireError
from tensorwire.files import write_whole


@dataclass(frozen=True)
class Host:
    """The machine that measured."""

    cpu: str
    cores: int
    """Cores that this process may use."""
    kernel: str

    @staticmethod
    def here() -> Host:
        cpu = platform.machine()
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                cpu = value.strip()
                break
        return Host(cpu=cpu, cores=len(os.sched_getaffinity(0)), kernel=platform.release())


@dataclass(frozen=True)
class StepMs:
    """How long a step took, in milliseconds, over every measured step."""

    p50: float
    p90: float
    min: float


@dataclass(frozen=True)
class TransferResult:
    """`bench transfer`: one protocol assigning one large tensor from worker to ps."""

    protocol: str
    tensor_fuse: bool
    data_mb: float
    tensors: int
    iters: int
    """Measured steps."""
    mb_per_s: float
    """data_mb over the median time of a step."""
    step_ms: StepMs
    cpu_s_per_gb: float | None
    """CPU seconds of ps and worker for each GB moved; None where one of them is on another host."""


@dataclass(frozen=True)
class StepsResult:
    """`bench steps`: one protocol, one case of small tensors."""

    protocol: str
    tensor_fuse: bool
    case: str
    """"tiny" or "many"."""
    data_mb: float
    tensors: int
    iters: int
    step_ms: StepMs


@dataclass(frozen=True)
class StrategyResult:
    """`bench strategy`: one protocol, one kind of scheduled function."""

    protocol: str
    case: str
    """"read" or "tiny"."""
    data_mb: float
    """Read from the ps by each function."""
    iters: int
    """Measured functions."""
    functions_per_s: float
    step_ms: StepMs
    """Of one function, from round to round: each figure is the mean of a round."""


@dataclass(frozen=True)
class TrainResult:
    """`bench train` and `demo`: one protocol training one model."""

    protocol: str
    tensor_fuse: bool
    model: str
    steps: int
    steps_per_s: float
    examples_per_s: float
    auc: float
    rpcs_per_step: float | None
    """Calls from one task to another, each a request with its reply, and tensors sent unasked."""
    wire_mb_per_step: float | None
    """Between the tasks, both directions, by TCP or through memory."""
    ps: int | None = None
    workers: int | None = None
    batch_size: int | None = None
    """These three are None in records of the first days."""


@dataclass(frozen=True)
class LatencyUs:
    """How long a request took, in microseconds, over every measured request."""

    p50: float
    p99: float


@dataclass(frozen=True)
class ServeResult:
    """`bench serve`: one protocol, one ps asked by many clients."""

    protocol: str
    clients: int
    """Each with a connection of its own."""
    in_flight: int
    """Requests of each client on their way."""
    message_size: int
    """Mean bytes of a tensor."""
    payload: str
    """"uniform", "random" or "skewed"."""
    requests: int
    """Measured requests."""
    requests_per_s: float
    mb_per_s: float
    latency_us: LatencyUs
    ps_cpu_us_per_request: float
    """CPU time of the ps's process."""
    ps_threads: int


@dataclass(frozen=True)
class TcpResult:
    """`bench tcp`: so many raw TCP streams at once."""

    implementation: str
    """"tcp", tensorwire's own streams, or "iperf3 3.12"."""
    streams: int
    message_size: int
    """Bytes of the buffer that each stream sends over and over, and receives into."""
    mb_per_s: float
    """Of all streams together."""


@dataclass(frozen=True)
class RpcResult:
    """`bench rpc`: one protocol without TensorFlow."""

    protocol: str
    implementation: str
    """"engine" (tensorwire's), "grpc C++ 1.51.1" or "grpcio 1.76.0" (in Python)."""
    message_size: int
    """Bytes of a request, which the server receives whole and throws away."""
    response_size: int
    concurrency: int
    """Requests on their way at a time, over all channels; 0: as many as the peer likes."""
    channels: int
    """Each is a TCP connection."""
    server_threads: int
    """Threads of the server that move bytes: completion queues of gRPC, reactors of the engine."""
    requests: int
    """Measured requests."""
    requests_per_s: float
    mb_per_s: float
    """Of requests."""
    latency_us: LatencyUs | None
    """None where it is not known."""
    cpu_us_per_request: float | None
    """CPU time of both ends; None where it is not known."""


@dataclass(frozen=True)
class MemoryResult:
    """`benchmarks/memory`: what one task holds while one large tensor moves over and over."""

    protocol: str
    transport: str
    task: str
    """"ps:0" or "worker:0"."""
    data_mb: float
    iters: int
    early_mb: float
    """Resident memory, in MB of 10^6 bytes, after the first hundred steps."""
    highest_mb: float
    """The highest of the samples taken from then on."""
    final_mb: float
    """After the last step."""
    pool_cap_mb: float
    """What a task may keep of received tensors' memory (TENSORWIRE_POOL_MB)."""


@dataclass(frozen=True)
class LayerResult:
    """`bench all`: what is left of the link at one layer."""

    layer: str
    """"link" or, on one machine, "memcpy"; "iperf3", "tcp", "rpc", "transfer", "train"."""
    protocol: str | None
    """None where none takes part."""
    message_size: int | None
    """Bytes of what was moved at a time; None where there is no one size."""
    mb_per_s: float
    of_layer_below: float | None
    """Share of what the layer below it carries, under the same protocol; None at the lowest.

    iperf3 stands beside tcp, on the link.
    """


@dataclass(frozen=True)
class TaskLoad:
    """What one task of a job used while it trained."""

    task: str
    """"ps:0"."""
    node: str
    cores: float
    """CPU seconds a second."""
    cpu_limit: float
    """What its pod may use."""
    memory_mb: float
    """Resident, of 10^6 bytes, at the end."""
    in_mb_per_s: float
    out_mb_per_s: float


@dataclass(frozen=True)
class Verdict:
    """One finding of the doctor."""

    rule: str
    title: str
    cost: float | None
    """Share of a step, 0 to 1; None where it is not known."""
    confidence: str
    change: str
    evidence: Sequence[str]


@dataclass(frozen=True)
class LayoutResult:
    """`k8s compare`: one layout of a case, with one placement of the variables."""

    layout: str
    """"colocated" or "isolated"."""
    placement: str
    protocol: str
    case: str
    case_workers: int
    """What the case says; `workers` of them were run."""
    workers: int
    ps: int
    nodes: int
    seconds: float
    """How long each job was looked at."""
    steps_per_s: float
    """Of all workers together; the median over the rounds."""
    between_nodes_mb_per_s: float
    """What tasks of different nodes sent each other; these and what follows: of the round in the
    middle."""
    tasks: Sequence[TaskLoad]
    step: str | None
    """Where the time of a worker's step goes, in words; None where that is not known."""
    verdicts: Sequence[Verdict]
    """The costliest first."""


Result = (
    MemoryResult
    | TcpResult
    | RpcResult
    | TransferResult
    | StepsResult
    | StrategyResult
    | ServeResult
    | TrainResult
    | LayerResult
    | LayoutResult
)

_RESULT_TYPES: dict[str, type[Result]] = {
    "bench tcp": TcpResult,
    "bench rpc": RpcResult,
    "benchmarks/peers": RpcResult,
    "bench transfer": TransferResult,
    "benchmarks/memory": MemoryResult,
    "bench steps": StepsResult,
    "bench strategy": StrategyResult,
    "bench serve": ServeResult,
    "bench train": TrainResult,
    "demo": TrainResult,
    "bench all": LayerResult,
    "k8s compare": LayoutResult,
}


@dataclass(frozen=True)
class Ratio:
    """How many times as fast one side is as the other."""

    value: float
    """Ratio of the medians over the rounds; above 1: the first is faster."""
    interval: tuple[float, float] | None = None
    """Where it would be found in 95 of 100 such measurements; None: one round cannot say."""


@dataclass(frozen=True)
class Noise:
    """What else the machine did during a measurement, and how much the rounds differ."""

    load_start: float
    """Load average of the minute before: the work of others."""
    load_end: float
    """Load average at the end: ours is in it."""
    steal: float
    """Share, 0 to 1, of the machine's CPU time that its hypervisor gave to others."""
    scatter: Mapping[str, float]
    """Of each side: the quartile distance of its rounds, over their median."""


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


Result_co = TypeVar("Result_co", bound=Result, covariant=True)


@dataclass(frozen=True)
class Record(Generic[Result_co]):
    """One call of a measuring command.

    `ratios` has a key "a/b" for each comparison; above 1 always means that a is faster.
    `ceilings` has MB/s of what the machine does without TensorFlow: "tcp", "memcpy", "iperf3".
    """

    command: str
    tensorflow: str | None
    """Its version; None where it takes no part."""
    results: Sequence[Result_co]
    ratios: Mapping[str, Ratio]
    version: str = field(default_factory=lambda: tensorwire.__version__)
    host: Host = field(default_factory=Host.here)
    ceilings: Mapping[str, float] = field(default_factory=dict)
    noise: Noise | None = None
    lab: Mapping[str, Any] | None = None
    """The lab's settings (`LabSettings.document`) with "network" and "notes": whether there was a
    link, and what was asked for and is not so. None outside a lab."""
    time: str = field(default_factory=_now)
    """When it was made, in UTC: "2026-01-31T12:00:00Z"; empty where nobody noted it."""

    def document(self) -> dict[str, Any]:
        """What its JSON says, in the order in which people read it."""
        document: dict[str, Any] = {
            "command": self.command,
            "version": self.version,
            "tensorflow": self.tensorflow,
            "host": dataclasses.asdict(self.host),
            "time": self.time,
            "results": [dataclasses.asdict(result) for result in self.results],
            "ratios": {name: ratio.value for name, ratio in self.ratios.items()},
            "intervals": {
                name: ratio.interval
                for name, ratio in self.ratios.items()
                if ratio.interval is not None
            },
            "ceilings": dict(self.ceilings),
            "noise": None if self.noise is None else dataclasses.asdict(self.noise),
        }
        if self.lab is not None:
            document["lab"] = dict(self.lab)
        return document

    def to_json(self) -> str:
        """The record as JSON."""
        return json_text(self.document())

    @staticmethod
    def from_json(text: str) -> Record[Result]:
        """Reads what `to_json` wrote.

        Raises:
            TensorwireError: the text is no such record.
        """
        try:
            document = json.loads(text)
        except ValueError as error:
            raise not_a_record(error) from error
        return Record.from_document(document)

    @staticmethod
    def from_document(document: Any) -> Record[Result]:
        """Reads what `document` gave, also where it lacks what older versions did not write.

        Raises:
            TensorwireError: it is no such record.
        """
        try:
            result_type = _RESULT_TYPES[document["command"]]
            intervals = document.get("intervals", {})
            noise = document.get("noise")
            time = document.get("time", "")
            if not document["results"] or not isinstance(time, str):
                raise ValueError("it has no results, or a time that is none")
            return Record(
                command=document["command"],
                version=document["version"],
                tensorflow=document["tensorflow"],
                host=from_document(Host, document["host"]),
                results=[from_document(result_type, entry) for entry in document["results"]],
                ratios={
                    name: Ratio(float(value), _interval(intervals.get(name)))
                    for name, value in document["ratios"].items()
                },
                ceilings={k: float(v) for k, v in document.get("ceilings", {}).items()},
                noise=None if noise is None else from_document(Noise, noise),
                lab=_lab(document.get("lab")),
                time=time,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise not_a_record(error) from error

    def write(self, path: Path) -> None:
        """Writes the JSON to `path`, whole or not at all.

        Raises:
            TensorwireError: the file cannot be written.
        """
        write_whole(path, self.to_json())


def not_a_record(error: Exception) -> TensorwireError:
    """What to raise where a text is no record because of `error`."""
    return TensorwireError(f"this is no record of a benchmark: {error!r}")


def json_text(document: dict[str, Any]) -> str:
    """JSON as records are written: a line a field, floats with six significant digits."""
    return json.dumps(_rounded(document), indent=1) + "\n"


def _lab(lab: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Checked: pages read it field by field."""
    if lab is None:
        return None
    if not isinstance(lab["network"], bool) or not isinstance(lab["hosts"], int):
        raise ValueError(f"no lab: {lab!r}")
    if not all(isinstance(note, str) for note in lab["notes"]):
        raise ValueError(f"its notes are no text: {lab['notes']!r}")
    for name in ("rate_mbit_per_s", "delay_us", "cpus"):
        of_all = lab[name]
        for one in of_all if isinstance(of_all, list) else [of_all]:
            if one is not None and not isinstance(one, (int, float)):
                raise ValueError(f"{name} is no number: {one!r}")
    return lab


def _interval(bounds: Sequence[float] | None) -> tuple[float, float] | None:
    if bounds is None:
        return None
    low, high = bounds
    return float(low), float(high)


def _rounded(value: Any) -> Any:
    """Floats with six significant digits: more would be noise."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(entry) for entry in value]
    return value
