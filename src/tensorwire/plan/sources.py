"""Jobs from what a user has: a graph, variables, a model that was calibrated, a record of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tensorwire.cluster import is_ps
from tensorwire.doctor import evidence
from tensorwire.doctor import records as looks
from tensorwire.errors import UsageError
from tensorwire.files import read_json
from tensorwire.laboratory import laboratory
from tensorwire.placement.plan import Model, Variable
from tensorwire.plan.costs import FUSED, Calibration, Kernels
from tensorwire.plan.job import JobModel, JobVariable, Transfer
from tensorwire.plan.loads import receiving_s, sending_s

ONE_BIG = "one-big"
_BATCH_SIZE = 256
_FLOAT = 4
_BIG, _SMALL = (12_000, 256), (256,)
_SMALL_VARIABLES = 20


def of_calibrated(calibration: Calibration, model: str) -> JobModel:
    """A model that was measured along with the costs.

    Raises:
        UsageError: it was not.
    """
    job = calibration.jobs.get(model)
    if job is None:
        known = ", ".join(calibration.jobs) or "none"
        raise UsageError(
            f"the calibration has no model {model} (it has {known}): "
            "run `tensorwire plan calibrate`, or give --graph or --from"
        )
    return job


def of_model(model: Model, calibration: Calibration, name: str, batch_size: int | None) -> JobModel:
    """A graph's: what crosses follows from its shapes, and its own work from `Kernels`.

    A tensor that goes to the ps counts as ids to look up where rows come back for them that are as
    many, or as many as the batch; else as a gradient.

    Raises:
        UsageError: the graph leaves sizes open and no batch was given, or nothing crosses.
    """
    if any(-1 in (each.shape or ()) for each in model.crossings) and batch_size is None:
        raise UsageError("the graph has unknown dimensions: give the batch size with --batch")
    asked: dict[str, Transfer] = defaultdict(Transfer)
    pulled: dict[str, Transfer] = defaultdict(Transfer)
    pushed: dict[str, Transfer] = defaultdict(Transfer)
    unknown = 0
    for crossing in model.crossings:
        size = crossing.bytes(batch_size or 1)
        unknown += size is None
        # What has one dimension and integers is asked with; with a second one it carries values.
        is_ids = crossing.to_ps and crossing.item_bytes == 8 and len(crossing.shape or ()) == 1
        way = asked if is_ids else pushed if crossing.to_ps else pulled
        way[crossing.variable] += Transfer(1, size or 0)
    if not model.crossings:
        raise UsageError(
            f"nothing crosses between workers and ps in {name}: give the graph of training, with "
            "the optimizer's updates"
        )
    kernels = calibration.kernels
    variables, worker_cpu_s = [], 0.0
    for variable in model.variables:
        moved = pulled[variable.name] + pushed[variable.name]
        if not moved.tensors + asked[variable.name].tensors:
            continue
        worker_cpu_s += kernels.worker_s(1, moved.bytes)
        variables.append(
            JobVariable(
                variable,
                asked[variable.name],
                pulled[variable.name],
                pushed[variable.name],
                kernels.ps_s(1, moved.bytes),
            )
        )
    source = f"{name}: what crosses by its shapes, its own work by the calibration's kernels"
    if unknown:
        source += f"; {unknown} tensors of unknown shape count without bytes"
    return JobModel(name, source, batch_size or 1, tuple(variables), worker_cpu_s)


def of_variables(
    name: str,
    variables: Sequence[Variable],
    kernels: Kernels,
    *,
    pull: bool = True,
    push: bool = True,
) -> JobModel:
    """A step that reads and updates every variable as a whole, and does nothing else."""
    found, moved_bytes = [], 0.0
    for variable in variables:
        way = Transfer(1, variable.bytes)
        pulled, pushed = way if pull else Transfer(), way if push else Transfer()
        both_bytes = pulled.bytes + pushed.bytes
        moved_bytes += both_bytes
        ps_cpu_s = kernels.ps_s(1, both_bytes)
        found.append(JobVariable(variable, pulled=pulled, pushed=pushed, ps_cpu_s=ps_cpu_s))
    own_s = kernels.worker_s(len(found), moved_bytes)
    return JobModel(name, "made of variables", 1, tuple(found), own_s)


def one_big(kernels: Kernels) -> JobModel:
    """A dense parameter of 12 MB that each step reads and updates as a whole, and small ones.

    It stands for no model in particular: the published test does not name its own.
    """
    shapes = {"big": _BIG, **{f"small{n}": _SMALL for n in range(_SMALL_VARIABLES)}}
    variables = [Variable(name, shape, _FLOAT) for name, shape in shapes.items()]
    return replace(
        of_variables(ONE_BIG, variables, kernels),
        source="one parameter of 12 MB and 20 of 1 KB, invented; own work by the calibration's "
        "kernels",
        batch_size=_BATCH_SIZE,
    )


def of_record(path: Path, calibration: Calibration) -> JobModel:
    """Reads a record of `bench train`, `demo` or `doctor`.

    Raises:
        TensorwireError: the file is not one of these records.
    """
    document = read_json(path)
    command = document.get("command") if isinstance(document, dict) else None
    if command in ("bench train", "demo"):
        return _of_training(calibration, path)
    if command == "doctor":
        return _of_look(looks.read(path), calibration, path)
    raise UsageError(
        f"{path} is no record of a run: give the --json of `tensorwire bench train`, `demo` or "
        "`doctor`"
    )


def _of_training(calibration: Calibration, path: Path) -> JobModel:
    results = laboratory("experiments.runs").read(path).results
    if not results:
        raise UsageError(f"{path} has no result of a training")
    first = results[0]
    job = of_calibrated(calibration, first.model)
    rates = ", ".join(f"{each.name} {each.steps_per_s:.3g}" for each in results)
    tasks = f"{first.workers} workers and {first.ps} ps, " if first.workers else ""
    source = f"{job.source}; {path.name} ran it with {tasks}steps/s: {rates}"
    if first.batch_size and first.batch_size != job.batch_size:
        source += f", with {first.batch_size} examples a step, and not {job.batch_size}"
    return replace(job, source=source)


def _of_look(seen: evidence.Evidence, calibration: Calibration, path: Path) -> JobModel:
    """A running job's tensors by name, and its tasks' CPU without what the transport takes."""
    job = seen.job
    if job is None:
        raise UsageError(f"{path} contains no running job: record it while a job trains")
    steps = sum(task.steps or 0.0 for task in job.workers)
    if not steps:
        raise UsageError(f"{path} contains no step of a worker: record it with more --seconds")
    side = FUSED if job.tensor_fuse else job.protocol
    costs = calibration.costs.get(side)
    if costs is None:
        raise UsageError(f"the calibration has no costs of {side}, on which {path} was made")
    ps_cpu_s = sum(task.cpu_s or 0.0 for task in job.ps) / steps
    worker_cpu_s = sum(task.cpu_s or 0.0 for task in job.workers) / steps
    flows = [*_flows(job, steps)]
    pulled, pushed = (
        sum((each.moved for each in flows if each.is_pushed == way), Transfer())
        for way in (False, True)
    )
    requests = len(job.ps)
    worker_cpu_s -= (
        costs.step_cpu_s
        + requests * costs.request_worker_cpu_s
        + receiving_s(pulled, costs)
        + sending_s(pushed, costs)
    )
    ps_cpu_s -= (
        requests * costs.request_ps_cpu_s + sending_s(pulled, costs) + receiving_s(pushed, costs)
    )
    parts = seen.placement.parts if seen.placement is not None else ()
    moved = _by_variable(flows, parts)
    placed: dict[str, float] = defaultdict(float)
    for part in parts:
        placed[part.variable] += part.bytes
    variables = tuple(
        JobVariable(
            # Rows are not known: in bytes it can be split anywhere.
            Variable(name, (max(1, round(placed.get(name) or there.bytes / 4)),), 1),
            pulled=there,
            pushed=back,
            ps_cpu_s=max(0.0, ps_cpu_s) / max(1, len(moved)),
        )
        for name, (there, back) in moved.items()
    )
    return JobModel(
        path.name,
        f"{path.name}, a look at {len(job.workers)} workers and {len(job.ps)} ps on {side}",
        1,
        variables,
        max(0.0, worker_cpu_s),
    )


@dataclass(frozen=True)
class _Flow:
    """A tensor that a step moves."""

    ps: str
    """"ps:0"."""
    name: str
    is_pushed: bool
    moved: Transfer


def _flows(job: evidence.JobEvidence, steps: float) -> Iterator[_Flow]:
    """The tensors that go between workers and ps."""
    for task in (*job.workers, *job.ps):
        is_pushed = is_ps(task.task)
        for flow in task.received:
            ps = task.task if is_pushed else flow.peer
            if is_ps(ps):
                moved = Transfer(flow.tensors / steps, flow.bytes / steps)
                yield _Flow(ps, flow.name, is_pushed, moved)


def _by_variable(
    flows: Iterable[_Flow], parts: Sequence[evidence.PlacedPart]
) -> dict[str, tuple[Transfer, Transfer]]:
    """Pulled and pushed by variable, as far as the job has told which tensor is whose.

    Tensors without a variable, mostly gradients, count with the variables of their ps, by bytes.
    """
    names = {(f"ps:{p.ps}", tensor): p.variable for p in parts for tensor in p.tensors}
    moved: dict[str, tuple[Transfer, Transfer]] = defaultdict(lambda: (Transfer(), Transfer()))
    for flow in flows:
        beside = [part for part in parts if f"ps:{part.ps}" == flow.ps and part.bytes]
        whole = sum(part.bytes for part in beside)
        shares = [(part.variable, part.bytes / whole) for part in beside]
        if (flow.ps, flow.name) in names or not shares:
            shares = [(names.get((flow.ps, flow.name), f"{flow.ps} {flow.name}"), 1.0)]
        for variable, share in shares:
            pulled, pushed = moved[variable]
            own = flow.moved.times(share)
            moved[variable] = (pulled, pushed + own) if flow.is_pushed else (pulled + own, pushed)
    return moved
