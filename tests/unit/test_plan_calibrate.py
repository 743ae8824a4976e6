"""Fitting costs to synthetic observations returns the costs behind them."""

import dataclasses
import itertools
import json
from collections.abc import Mapping

import numpy as np
import pytest

from tensorwire.bench.calibration.calibrate import BOTH_WAYS, CASES, calibration_of
from tensorwire.bench.calibration.fit import LOCAL, NOTHING, Observation, descend, fit_cpu, missed
from tensorwire.bench.calibration.models import job_of, unique_ids
from tensorwire.bench.frame.record import Machine
from tensorwire.bench.models import MODELS
from tensorwire.bench.models.examples import Examples
from tensorwire.bench.models.training import Column, Model
from tensorwire.plan import calibration_file
from tensorwire.plan.costs import Calibration, Costs, Kernels
from tensorwire.plan.job import Transfer

STEP_S = 150e-6
KERNELS = Kernels(1e-6, 1e-11, 1e-6, 1e-11)
COSTS = {
    "grpc": Costs(STEP_S, 900e-6, 700e-6, 24e-6, 33e-6, 0.4e-9, 0.8e-9),
    "grpc++": Costs(STEP_S, 200e-6, 180e-6, 1e-6, 5e-6, 0.25e-9, 0.5e-9),
}
OWN_S = (5e-3, 8e-3)
SIZES = {"tiny": (1, 4), "small": (200, 200 << 10), "large": (4, 4 << 20), "mixed": (12, 3 << 20)}


def observation(
    case: str, side: str, to_worker: Transfer, to_ps: Transfer, packets_s: float = 0.0
) -> Observation:
    """An observation of a machine with exactly COSTS, KERNELS and OWN_S, and one core per task."""
    variables = int(max(to_worker.tensors, to_ps.tensors))
    size = to_worker.bytes + to_ps.bytes
    worker_s = STEP_S
    ps_s = 0.0
    model = "ctr" if case == "ctr" else ""
    kernels_s = variables * 1e-6 + size * 1e-11
    if side == LOCAL:
        worker_s += 2 * kernels_s
    elif case != NOTHING:
        own_s = OWN_S if model else (kernels_s, kernels_s)
        costs = COSTS[side]
        worker_s += (
            costs.request_worker_cpu_s
            + own_s[0]
            + to_ps.tensors * costs.tensor_send_cpu_s
            + to_ps.bytes * costs.byte_send_cpu_s
            + to_worker.tensors * costs.tensor_receive_cpu_s
            + to_worker.bytes * costs.byte_receive_cpu_s
        )
        ps_s += (
            costs.request_ps_cpu_s
            + own_s[1]
            + to_worker.tensors * costs.tensor_send_cpu_s
            + to_worker.bytes * costs.byte_send_cpu_s
            + to_ps.tensors * costs.tensor_receive_cpu_s
            + to_ps.bytes * costs.byte_receive_cpu_s
        )
    return Observation(
        case=case,
        side=side,
        workers=1,
        ps=1,
        variables=variables,
        to_worker=to_worker,
        to_ps=to_ps,
        model=model,
        link_bits_per_s=None,
        step_s=worker_s + ps_s,
        worker_cpu_s=worker_s - packets_s / 2,
        ps_cpu_s=ps_s - packets_s / 2 if ps_s else 0.0,
        machine_cpu_s=worker_s + ps_s,
    )


def observations(packets: float = 0.0) -> list[Observation]:
    """`packets`: the kernel's CPU seconds per byte that are not accounted to any task."""
    nothing, made = Transfer(), []
    for side in COSTS:
        made.append(observation(NOTHING, side, nothing, nothing))
        for case, (tensors, size) in SIZES.items():
            way = Transfer(tensors, size)
            packets_s = packets * size
            made += [
                observation(f"{case} pull", side, way, nothing, packets_s),
                observation(f"{case} push", side, nothing, way, packets_s),
                observation(case, side, way, way, 2 * packets_s),
            ]
        ctr = job_of("ctr", 256, 0.0, 0.0, "")
        ways = [sum((w for v in ctr.variables for w in of(v)), nothing) for of in (_pulled, _to_ps)]
        made.append(observation("ctr", side, *ways))
    made += [
        observation(case, LOCAL, Transfer(*size), Transfer(*size)) for case, size in SIZES.items()
    ]
    return made


def _pulled(variable):
    return (variable.pulled,)


def _to_ps(variable):
    return variable.asked, variable.pushed


def assert_costs(found: Costs, expected: Costs) -> None:
    for name in (f.name for f in dataclasses.fields(Costs) if f.name.endswith("_cpu_s")):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=0.02), name


def test_costs_kernels_and_a_models_own_work_are_told_apart() -> None:
    fitted = fit_cpu(observations())
    for side, costs in COSTS.items():
        assert_costs(fitted.costs[side], costs)
    assert fitted.own_s["ctr"] == pytest.approx(OWN_S, rel=0.02)
    assert fitted.kernels.variable_ps_cpu_s == pytest.approx(KERNELS.variable_ps_cpu_s, rel=0.05)
    assert fitted.kernels.byte_ps_cpu_s == pytest.approx(KERNELS.byte_ps_cpu_s, rel=0.05)


def test_a_crowd_tells_by_how_much_all_costs_of_a_side_change() -> None:
    known = observations()
    alone = next(each for each in known if each.case == "ctr" and each.side == "grpc++")
    costs = COSTS["grpc++"]
    # Two more ps are two more requests.
    worker_s = 1.3 * (alone.worker_cpu_s + 2 * costs.request_worker_cpu_s)
    ps_s = 1.3 * (alone.ps_cpu_s + 2 * costs.request_ps_cpu_s)
    crowd = dataclasses.replace(
        alone,
        workers=6,
        ps=3,
        worker_cpu_s=worker_s,
        ps_cpu_s=ps_s,
        machine_cpu_s=worker_s + ps_s,
        step_s=3 * (worker_s + ps_s),
    )
    fitted = fit_cpu([*known, crowd])
    assert fitted.crowded == {"grpc++": pytest.approx(1.3, rel=0.01)}
    assert_costs(fitted.costs["grpc++"], costs)


def test_what_the_kernel_does_for_packets_counts_for_those_who_send_them() -> None:
    assert_costs(fit_cpu(observations(packets=0.1e-9)).costs["grpc"], COSTS["grpc"])


def test_what_others_do_meanwhile_is_left_out() -> None:
    disturbed = [
        dataclasses.replace(each, machine_cpu_s=each.machine_cpu_s + 0.5 * each.step_s)
        for each in observations()
    ]
    assert_costs(fit_cpu(disturbed).costs["grpc++"], COSTS["grpc++"])


def test_a_search_finds_what_explains_the_steps_best() -> None:
    choices = {"latency": (0.0, 50.0, 100.0, 200.0), "parallelism": (1.0, 1.5, 2.0)}

    def misses(values: Mapping[str, float]) -> float:
        seen = (100.0 + 300.0 / 1.5, 100.0 + 60.0 / 1.5)
        expected = (values["latency"] + work / values["parallelism"] for work in (300.0, 60.0))
        return sum(missed(e, s) for e, s in zip(expected, seen, strict=True))

    assert descend(misses, choices) == {"latency": 100.0, "parallelism": 1.5}


def test_the_calibration_shipped_is_kept_readable_and_as_it_was() -> None:
    document = json.loads(calibration_file.SHIPPED.read_text())
    assert calibration_file.text(document) + "\n" == calibration_file.SHIPPED.read_text()
    assert max(map(len, calibration_file.text(document).splitlines())) < 500
    assert (
        calibration_file.read(calibration_file.SHIPPED).to_document()["costs"].keys()
        == document["costs"].keys()
    )


def test_a_calibration_is_read_as_it_was_written_and_knows_the_directions_of_slow_links() -> None:
    """Two workers use a ps's slow link in turn, and both directions of a faster one at once."""
    known = [each for each in observations() if each.case in {case.name for case in CASES}]
    pairs = [
        dataclasses.replace(each, workers=2, ps=2)
        for each in known
        if each.case in ("small", "mixed") and each.side != LOCAL
    ]
    size = sum(4 * table.floats for table in BOTH_WAYS.tables)
    way = Transfer(len(BOTH_WAYS.tables), size)
    linked = [
        dataclasses.replace(
            observation(BOTH_WAYS.name, "grpc++", way, way),
            workers=2,
            link_bits_per_s=rate,
            step_s=step_s,
        )
        for rate, step_s in ((1e8, 4 * size / (1e8 / 8)), (1e9, 2 * size / (1e9 / 8)))
    ]
    host = Machine("a processor", 2, "a kernel")
    made = calibration_of([*known, *pairs, *linked], host, "2.21.0", ["a note"])
    assert (made.measured_workers, made.measured_ps) == (2, 2)
    assert Calibration.from_document(made.to_document()) == made
    assert sum(each.ps_cpu_s for each in made.jobs["ctr"].variables) == pytest.approx(
        OWN_S[1], rel=0.02
    )
    costs = made.costs["grpc++"]
    assert costs.both_ways_share(1e8 / 8) <= 0.6
    assert costs.both_ways_share(1e8 / 8) < costs.both_ways_share(1e9 / 8)


def test_ctr_moves_what_it_was_seen_to_move() -> None:
    """As measured by `bench train --model ctr`: 3.7 MB and 726 tensors per step."""
    variables = job_of("ctr", 256, 0.0, 0.0, "").variables
    moved = list(itertools.chain.from_iterable((v.asked, v.pulled, v.pushed) for v in variables))
    assert sum(each.bytes for each in moved) == pytest.approx(3.7e6, rel=0.02)
    assert sum(each.tensors for each in moved) == pytest.approx(726, rel=0.02)


def test_with_exact_rewrites_each_id_and_its_row_cross_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = 4
    ids = np.array([[1, 7], [1, 7], [2, 7], [2, 7], [3, 8], [4, 8], [5, 8], [6, 8], [9, 9]])
    data = Examples(ids.astype(np.int32), np.zeros(len(ids), np.int32))
    columns = [Column("a", 10), Column("b", 10, embedding_dim=2, is_wide=False)]
    monkeypatch.setitem(MODELS, "small", Model("small", "Small", columns, lambda: (data, data)))

    assert unique_ids("small", batch) == (3.0, 1.0)  # 2 and 4; 1 and 1
    stock = job_of("small", batch, 0.0, 0.0, "")
    exact = job_of("small", batch, 0.0, 0.0, "", is_exact=True)
    moved = {v.variable.name: (v.asked.bytes, v.pulled.bytes) for v in stock.variables}
    less = {v.variable.name: (v.asked.bytes, v.pulled.bytes) for v in exact.variables}
    assert moved["deep/a"] == (4 * 8, 4 * 8 * 4)
    assert less["deep/a"] == (3 * 8, 3 * 8 * 4)
    assert less["deep/b"] == (8, 2 * 4)
    assert less["wide/a"] == (0, 3 * 4)
    assert moved["deep/layer0/kernel"] == less["deep/layer0/kernel"]
