"""The costs of a step on a measured machine: all figures that a prediction uses.

Times are seconds, sizes bytes, and CPU is seconds of one core. A worker's step is, on every
protocol: the worker starts its part and that of each ps (RunGraph); tensors go to the ps that it
needs to answer (ids), come back (rows, dense variables), the worker computes, and tensors go to the
ps again (gradients), which applies them and says that it is done. What crosses costs CPU at both of
its ends, by the tensor and by the byte; the rest is the model's own (`tensorwire.plan.job`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorwire.dataclass_json import of_command
from tensorwire.machine import Machine
from tensorwire.plan.job import JobModel

COMMAND = "plan calibrate"
GRPC, FUSED, EXACT = "grpc", "grpc++ fused", "grpc++ exact"
SIDES = (GRPC, "grpc++", FUSED, EXACT)
"""Names of `Calibration.costs`: protocols as they are, grpc++ with tensors sent together, and
grpc++ with all exact rewrites."""


@dataclass(frozen=True)
class Costs:
    """The costs of one side of `SIDES`. A fused tensor counts as one of the model's."""

    step_cpu_s: float
    """Cost of a worker per step, whatever crosses: session.run, its partition, waking."""
    request_worker_cpu_s: float
    """Cost of a worker per ps of its step: sending RunGraph and CleanupGraph."""
    request_ps_cpu_s: float
    """Cost of that ps: receiving both, starting and ending the executor, replying."""
    tensor_send_cpu_s: float
    """Cost of sending a tensor (on grpc including RecvTensor's reply)."""
    tensor_receive_cpu_s: float
    """Cost of receiving it (on grpc including RecvTensor's request)."""
    byte_send_cpu_s: float
    byte_receive_cpu_s: float
    step_latency_s: float = 0.0
    """Time of a step in which no core works and no byte travels: threads wake each other. The
    network's own latency (`Shape.latency_s`) is not in it."""
    exchange_parallelism: float = 1.0
    """Cores that the exchange of one worker with one ps keeps busy at one of its ends, at most: 1
    where a connection belongs to one communication thread."""
    exchange_overlap: float = 0.0
    """Share, 0 to 1, of the worker's CPU for an exchange that runs while the ps works on the same
    exchange. 0: the ends take turns, as with one tensor; it shows in the step of one worker, and
    hardly where cores are all busy."""
    is_fused: bool = False
    """True if the tensors of a ps are one message: it leaves when the last of them is computed, and
    nothing is applied before all of it has come."""
    has_flow_control: bool = False
    """True if the protocol holds back what its peer has not made room for, as gRPC's HTTP/2 does;
    else a sender hands over to TCP all that it has."""
    link_share: float = 0.95
    """Share of a link's nominal rate that tensors get; headers take the rest."""
    both_ways: tuple[tuple[float, float], ...] = ()
    """Links whose nominal bytes a second are at most the first are shared by their two directions:
    of long transfers, both together carry the second, a share of twice the rate. Workers that use
    one direction together go on so, and on a slow link nothing drives them apart for long. Rising;
    a faster link carries both."""
    crowded_factor: float = 1.0
    """The factor on all CPU costs while a machine has more to run than it has cores."""

    def both_ways_share(self, bytes_per_s: float) -> float:
        """Share of twice a link's nominal rate that both directions carry together."""
        return next((share for rate, share in self.both_ways if bytes_per_s <= rate), 1.0)


@dataclass(frozen=True)
class Kernels:
    """Costs of TensorFlow's own operations, on every protocol, for jobs that were not measured.

    A job that was recorded brings its own figures and these are not used.
    """

    variable_ps_cpu_s: float
    """Cost of a ps per variable that a worker's step looks up and updates."""
    byte_ps_cpu_s: float
    """Cost of a ps per byte of a variable that is read or updated: copied, gathered, applied."""
    variable_worker_cpu_s: float = 0.0
    """Cost of a worker per variable of its step: the operations before and after it."""
    byte_worker_cpu_s: float = 0.0
    """Cost of a worker per byte that it receives or sends: its kernels read and write it."""

    def ps_s(self, variables: float, size_bytes: float) -> float:
        """CPU of the ps for so many variables, of which so many bytes move."""
        return variables * self.variable_ps_cpu_s + size_bytes * self.byte_ps_cpu_s

    def worker_s(self, variables: float, size_bytes: float) -> float:
        """CPU of the worker for them."""
        return variables * self.variable_worker_cpu_s + size_bytes * self.byte_worker_cpu_s


@dataclass(frozen=True)
class Calibration:
    """The costs that one machine has: the record of `tensorwire plan calibrate`."""

    host: Machine
    tensorflow: str
    version: str
    """Version of tensorwire."""
    time: str
    """UTC, as records have it: "2026-01-31T12:00:00Z"."""
    costs: Mapping[str, Costs]
    """Costs by `SIDES`, of those that were measured."""
    kernels: Kernels
    measured_workers: int = 1
    """The most workers, and below the most ps, that it ran at once: beyond is extrapolation."""
    measured_ps: int = 1
    jobs: Mapping[str, JobModel] = field(default_factory=dict)
    """The models that were measured along with it, by name: "ctr"."""
    notes: tuple[str, ...] = ()
    """Caveats for readers: noise, figures that could not be measured."""

    def to_document(self) -> dict[str, Any]:
        """The calibration as JSON; "command" names the kind of record."""
        return {"command": COMMAND, **dataclasses.asdict(self)}

    @staticmethod
    def from_document(document: Any) -> Calibration:
        """Reads `to_document`.

        Raises:
            UsageError: it is not that.
        """
        return of_command(COMMAND, Calibration, document)
