"""Packing and plans: every variable is placed once, as evenly as the method promises."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorwire.errors import UsageError
from tensorwire.placement import packing, plan
from tensorwire.placement.plan import PlacementPlan, Variable
from tensorwire.placement.traffic import ASSUMED_BATCH, Crossing, Traffic, row_bounds

LOADS = st.lists(st.integers(0, 1000), max_size=40)
BINS = st.integers(1, 8)
SHAPES = st.one_of(
    st.just(()),
    st.tuples(st.integers(1, 5000)),
    st.tuples(st.integers(1, 5000), st.integers(1, 64)),
)


@st.composite
def models(draw: st.DrawFn) -> list[Variable]:
    shapes = draw(st.lists(SHAPES, max_size=15))
    return [
        Variable(f"v{i}", shape, 4, draw(st.integers(0, 1000)), draw(st.booleans()))
        for i, shape in enumerate(shapes)
    ]


@st.composite
def metrics(draw: st.DrawFn, variables: list[Variable]) -> Traffic | None:
    if not draw(st.booleans()):
        return None
    return Traffic({v.name: draw(st.integers(0, 10**6)) for v in variables})


def one(loads: list[int]) -> list[packing.Load]:
    return [(float(load),) for load in loads]


@given(LOADS, BINS)
def test_the_fullest_bin_has_at_most_the_mean_and_one_load(loads: list[int], bins: int) -> None:
    for pack in (packing.greedy, packing.longest_first):
        held = [h for (h,) in packing.fill(one(loads), pack(one(loads), bins), bins)]
        largest = max(loads, default=0)
        assert max(held) <= sum(loads) / bins + largest * (1 - 1 / bins) + 1e-6
        assert sum(held) == pytest.approx(sum(loads))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=7), st.integers(1, 3))
def test_longest_first_is_within_grahams_bound_of_the_best(loads: list[int], bins: int) -> None:
    packings = itertools.product(range(bins), repeat=len(loads))
    best = min(max(packing.fill(one(loads), places, bins))[0] for places in packings)
    held = packing.fill(one(loads), packing.longest_first(one(loads), bins), bins)
    assert max(held)[0] <= best * (4 / 3 - 1 / (3 * bins)) + 1e-9


def test_loads_without_weight_are_spread_by_what_they_do_weigh() -> None:
    """Tables without traffic must not all be placed on the ps with the least traffic."""
    loads: list[packing.Load] = [*[(10.0, 0.0)] * 4, *[(0.0, 10.0)] * 4]
    assert packing.fill(loads, packing.longest_first(loads, 4), 4) == [(10.0, 10.0)] * 4


@given(st.data(), models(), BINS, st.sampled_from(sorted(plan.STRATEGIES)))
def test_every_row_of_every_variable_is_on_one_ps(
    data: st.DataObject, variables: list[Variable], ps: int, strategy: str
) -> None:
    made = plan.STRATEGIES[strategy](variables, ps, data.draw(metrics(variables)))
    assert set(made.tasks) == {v.name for v in variables}
    for variable in variables:
        tasks = made.tasks[variable.name]
        assert all(0 <= task < ps for task in tasks)
        assert 1 <= len(tasks) <= (variable.rows if variable.can_split else 1)
    assert sum(made.bytes_per_ps) == pytest.approx(sum(v.bytes for v in variables))
    if made.traffic is not None:
        moved = sum(made.traffic.bytes_per_step.values())
        assert sum(made.traffic_per_ps or ()) == pytest.approx(moved)


@given(st.data(), models(), BINS, st.sampled_from(sorted(plan.STRATEGIES)))
def test_what_the_script_has_put_on_a_ps_stays_there(
    data: st.DataObject, variables: list[Variable], ps: int, strategy: str
) -> None:
    chosen = [data.draw(st.one_of(st.none(), st.integers(0, ps - 1))) for _ in variables]
    variables = [replace(v, ps=task) for v, task in zip(variables, chosen, strict=True)]
    made = plan.STRATEGIES[strategy](variables, ps, data.draw(metrics(variables)))
    assert all(made.tasks[v.name] == (v.ps,) for v in variables if v.ps is not None)


def test_others_are_placed_around_what_stays() -> None:
    variables = [
        Variable("table", (1000,), 4, ps=0),
        Variable("first", (500,), 4, can_split=False),
        Variable("second", (500,), 4, can_split=False),
    ]
    elsewhere = {"table": (0,), "first": (1,), "second": (1,)}
    assert plan.balanced(variables, 2).tasks == plan.greedy(variables, 2).tasks == elsewhere
    assert plan.round_robin(variables, 2).tasks == {**elsewhere, "first": (0,)}


@given(models(), BINS, st.integers(1, 1 << 16))
def test_balanced_makes_no_part_too_small_and_is_at_least_as_even_as_packing_alone(
    variables: list[Variable], ps: int, smallest: int
) -> None:
    made = plan.balanced(variables, ps, min_part_bytes=smallest)
    for part in made.parts:
        if part.of > 1:
            rows = next(v for v in variables if v.name == part.variable)
            assert part.bytes >= smallest - rows.bytes / rows.rows  # parts differ by a row
    loads = one([v.bytes for v in variables])
    packed = packing.fill(loads, packing.longest_first(loads, ps), ps)
    whole = packing.imbalance([h for (h,) in packed])
    if not any(len(tasks) > 1 for tasks in made.tasks.values()):
        assert made.bytes_imbalance == pytest.approx(whole)


@settings(max_examples=50)
@given(models(), BINS)
def test_a_plan_is_the_same_every_time_and_survives_json(
    variables: list[Variable], ps: int
) -> None:
    made = plan.balanced(variables, ps, min_part_bytes=1)
    assert made.tasks == plan.balanced(variables, ps, min_part_bytes=1).tasks
    assert PlacementPlan.from_document(json.loads(json.dumps(made.to_document()))) == made


@given(st.integers(0, 1000), st.integers(1, 50))
def test_parts_are_cut_as_tensorflow_cuts_them(rows: int, parts: int) -> None:
    bounds = row_bounds(rows, parts)
    assert bounds[0][0] == 0 and bounds[-1][1] == rows
    assert all(a[1] == b[0] for a, b in itertools.pairwise(bounds))
    sizes = [end - first for first, end in bounds]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1


EMBEDDING = Variable("embedding", (100_000, 64), 4)
DENSE = [Variable(f"dense{i}", (256, 256), 4) for i in range(8)]


def test_one_big_embedding_sits_on_one_ps_until_it_is_balanced() -> None:
    variables = [EMBEDDING, *DENSE]
    before = plan.round_robin(variables, 5)
    assert max(before.bytes_per_ps) > 0.8 * sum(before.bytes_per_ps)
    assert plan.greedy(variables, 5).bytes_imbalance > 4
    after = plan.balanced(variables, 5)
    assert after.bytes_imbalance <= 1.1
    assert len(after.tasks["embedding"]) == 5
    assert all(len(after.tasks[v.name]) == 1 for v in DENSE)  # no more parts than needed


def test_a_hot_table_is_split_for_its_traffic_though_it_is_small() -> None:
    hot = Variable("hot", (20_000, 32), 4)
    cold = [Variable(f"cold{i}", (50_000, 64), 4) for i in range(10)]
    moved = Traffic({"hot": 9e6, **{v.name: 1e5 for v in cold}})
    assert len(plan.balanced([*cold, hot], 5).tasks["hot"]) == 1
    made = plan.balanced([*cold, hot], 5, moved)
    assert len(made.tasks["hot"]) == 5
    assert made.traffic_imbalance is not None and made.traffic_imbalance <= 1.1
    assert made.bytes_imbalance <= 1.1


def test_hot_rows_weigh_more_than_their_bytes() -> None:
    """A tenth of the rows has nine tenths of the traffic, so parts of equal size are not equal."""
    table = Variable("table", (100_000, 32), 4)
    rows = {
        "variables": {
            "table": {"bytes_per_step": 10, "rows": [[0, 10_000, 9], [10_000, 100_000, 1]]}
        }
    }
    made = plan.balanced([table], 2, Traffic.from_document(rows))
    assert made.traffic_imbalance is not None and made.traffic_imbalance < 1.3
    assert len(made.tasks["table"]) > 2


def test_metrics_of_parts_are_the_heat_of_their_rows() -> None:
    moved = Traffic({"table/part_0": 30.0, "table/part_1": 10.0})
    assert moved.of("table", 5, 0, 3) == 30.0  # rows 0 to 2, then 3 and 4
    assert moved.of("table", 5, 0, 5) == 40.0
    assert moved.of("table", 5, 3, 4) == 5.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON"),
        ("{}", "no traffic of variables"),
        ("[]", "no traffic of variables"),
        ('{"variables": {"a": {"rows": []}}}', "no traffic of variables"),
        ('{"variables": {"a": -1}}', "are invalid"),
        ('{"variables": {"a": {"bytes_per_step": 1, "rows": [[3, 3, 1]]}}}', "are invalid"),
    ],
)
def test_a_file_that_is_no_record_of_traffic_is_refused(
    tmp_path: Path, text: str, says: str
) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=says):
        Traffic.read([path])


def test_a_file_that_is_no_plan_is_refused() -> None:
    good = plan.balanced([EMBEDDING], 2).to_document()
    for bad in ({}, {**good, "ps": 1}, {**good, "variables": [{"name": "x"}]}):
        with pytest.raises(UsageError, match="not a placement plan"):
            PlacementPlan.from_document(bad)


def counted(task: str, peer: str, direction: str, name: str, tensors: int, size: int) -> Any:
    long = [f"/job:{t[:-2]}/replica:0/task:{t[-1]}" for t in (task, peer)]
    return {
        "task": long[0], "peer": long[1], "direction": direction, "name": name,
        "tensors": tensors, "bytes": size, "not_ready_us": 0, "wire_us": 0,
    }  # fmt: skip


CROSSINGS = [
    Crossing("look_up", "table", False, (-1, 8), 4, table_rows=64),
    Crossing("grad", "table", True, (-1, 8), 4, table_rows=64),
    Crossing("ids", "table", True, (-1,), 8, table_rows=64),
    Crossing("matmul/read", "kernel", False, (8, 4), 4),
]


def test_metrics_of_tasks_become_bytes_a_step_of_variables(tmp_path: Path) -> None:
    process = {"host": "h", "pid": 1, "cores": 1, "at_s": 0.0, "cpu_s": 0.0, "rss_bytes": 0}
    zero = dict.fromkeys(
        ("clock_us", "recv_tensors", "pushed_tensors", "served_tensors", "run_graphs",
         "eager_calls", "fused_messages", "fused_tensors", "recv_waiting_us"), 0)  # fmt: skip

    def keep(name: str, *tensors: Any) -> Path:
        path = tmp_path / name
        path.write_text(json.dumps({"process": process, **zero, "tensors": tensors}))
        return path

    ps = [
        keep(
            "ps0",
            counted("ps:0", "worker:0", "out", "look_up", 30, 3000),
            counted("ps:0", "worker:0", "in", "grad", 30, 3000),
            counted("ps:0", "worker:1", "out", "look_up", 10, 1000),
            counted("ps:0", "worker:1", "in", "unknown", 10, 9000),
            counted("ps:0", "ps:1", "in", "grad", 1, 9000),
        ),
        keep("ps1", counted("ps:1", "worker:0", "out", "matmul/read", 30, 400)),
    ]
    worker = keep("worker", counted("worker:0", "ps:0", "in", "look_up", 30, 3000))
    read = Traffic.read([*ps, worker], CROSSINGS)  # a worker counts the same tensors as the ps
    assert read == Traffic({"table": 7000 / 40, "kernel": 400 / 40})
    assert Traffic.read([worker], CROSSINGS) == Traffic({"table": 100.0})
    with pytest.raises(UsageError, match="name no tensor of this graph"):
        Traffic.read([worker], [])
    with pytest.raises(UsageError, match="several files"):
        good = tmp_path / "variables.json"
        good.write_text('{"variables": {"table": 1}}')
        Traffic.read([good, worker], CROSSINGS)


@pytest.mark.parametrize(("batch", "examples"), [(10, 10), (None, ASSUMED_BATCH)])
def test_traffic_is_predicted_with_a_batch_for_sizes_that_the_graph_leaves_open(
    batch: int | None, examples: int
) -> None:
    assert Traffic.predicted([]) is None
    no_rank = Crossing("strange", "kernel", False, None, 4)
    predicted = Traffic.predicted([*CROSSINGS, no_rank], batch)
    assert predicted is not None
    assert predicted.bytes_per_step == {"table": examples * (2 * 32 + 8), "kernel": 128}


@pytest.mark.parametrize(("rows", "different"), [(1, 1), (64, 62.86), (10**9, 256)])
def test_with_exact_rewrites_a_row_moves_once_in_a_step(rows: int, different: float) -> None:
    crossings = [
        Crossing("look_up", "table", False, (-1, 8), 4, table_rows=rows),
        Crossing("matmul/read", "kernel", False, (-1, 4), 4),
    ]
    predicted = Traffic.predicted(crossings, 256, exact_rewrites=True)
    assert predicted is not None
    assert predicted.bytes_per_step["table"] == pytest.approx(different * 32, rel=1e-3)
    assert predicted.bytes_per_step["kernel"] == 256 * 16
