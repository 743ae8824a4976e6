"""The options of `tensorwire plan`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorwire.options import option


@dataclass(frozen=True)
class PlanOptions:
    """The job, the cluster, and the question."""

    from_path: Path | None = option(
        None,
        "A recorded run: --json of bench train, of demo, or of doctor beside a running job.",
        name="--from",
        metavar="FILE.json",
    )
    model: str | None = option(
        None,
        "A model that was calibrated (ctr, flights), or one-big: one large parameter beside small "
        "ones, as in the published test.  [default: ctr; one-big with --case]",
        metavar="NAME",
    )
    graph: Path | None = option(
        None,
        "A SavedModel's folder, a .meta file, the prefix of a checkpoint, or a graph.pbtxt.",
        path="any",
    )
    batch_size: int | None = option(
        None, "Batch size: with --graph, replaces its unknown dimensions.", least=1
    )
    worker_cpu_ms: float | None = option(
        None, "CPU of a worker's own operations for a step.  [default: the job's]", least=0
    )
    workers: int = option(8, least=1, most=10000)
    ps: int = option(2, least=1, most=1000)
    layout: str = option(
        "isolated",
        "colocated (a ps and its share of the workers on each machine), isolated (ps on machines "
        "of their own), one-machine (a lab).",
        metavar="LIST",
    )
    link: str = option(
        "10gbit",
        "Link rate of each machine, in each direction: 10gbit, 500mbit, none.",
        metavar="RATE",
    )
    latency_us: float = option(25.0, "One-way network latency in microseconds.", least=0)
    cores: float = option(16.0, "Cores of each machine.", above=0)
    workers_per_node: int | None = option(
        None, "Isolated: workers that share a machine.  [default: 1; 10 with --case]", least=1
    )
    worker_cores: float | None = option(
        None,
        "Cores that a worker may use.  [default: all of its machine's; 0.3 with --case]",
        above=0,
    )
    ps_cores: float | None = option(
        None, "Cores that a ps may use.  [default: all of its machine's; 2 with --case]", above=0
    )
    ps_threads: int | None = option(None, "Communication threads of a ps.", least=1)
    protocols: str = option(
        "grpc,grpc++",
        'grpc, grpc++; "grpc++ fused" sends tensors together, "grpc++ exact" has all exact '
        "rewrites (of ctr and flights).",
        metavar="LIST",
    )
    placement: str = option(
        "round_robin,balanced", "round_robin, greedy or balanced.", metavar="LIST"
    )
    sync: bool = option(False, "Synchronous training, as SyncReplicasOptimizer.")
    stragglers: float = option(
        0.0,
        "Variation of a worker's compute time (sigma of its logarithm): 0.3 is about a third.",
        metavar="SIGMA",
        least=0,
        most=2,
    )
    input_rate: float | None = option(
        None, "Examples per second that the input delivers to one worker.", above=0
    )
    sweep: str | None = option(
        None, "Predict a curve and its knee; or ps=1..20.", metavar="workers=1..1000"
    )
    case: str | None = option(
        None, "A case of the published table, both of its scenarios.", metavar="1..4"
    )
    steps_per_s: float | None = option(
        None, "Find the cluster with the fewest cores that reaches this rate.", above=0
    )
    calibration_path: Path | None = option(
        None,
        "Calibration file of another machine.  [default: this user's, else the shipped one]",
        name="--calibration",
        metavar="FILE.json",
    )
    seed: int = option(0, "Random seed.")
    no_changes: bool = option(False, "Do not search for improvements, which takes longer.")

    def job_changes(self) -> dict[str, Any]:
        """Fields of the job that options set."""
        changes: dict[str, Any] = {"straggler_sigma": self.stragglers}
        if self.sync:
            changes["training"] = "sync"
        if self.input_rate is not None:
            changes["input_examples_per_s"] = self.input_rate
        if self.worker_cpu_ms is not None:
            changes["worker_cpu_s"] = self.worker_cpu_ms / 1e3
        return changes
