"""Questions to the planner: sweeps, targets, changes, jobs from records, calibrations."""

import dataclasses
import json
from pathlib import Path
from unittest import mock

import pytest

from tensorwire.bench.frame.record import Machine
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.placement.plan import Model, Variable
from tensorwire.placement.traffic import Crossing
from tensorwire.plan import calibration_file, prediction, search, sources
from tensorwire.plan.cluster import Shape, link_bytes_per_s
from tensorwire.plan.costs import Calibration, Costs, Kernels
from tensorwire.plan.job import JobModel, JobVariable, Transfer
from tensorwire.plan.loads import PsLoad, alike, loads
from tensorwire.plan.prediction import PredictionRequest, placed

LOOKS = Path(__file__).with_name("looks")
GRPC = Costs(1e-3, 1e-4, 1e-4, 4e-5, 4e-5, 5e-10, 5e-10, step_latency_s=3e-4)
WIRE = Costs(5e-4, 4e-5, 4e-5, 8e-6, 8e-6, 3e-10, 3e-10, step_latency_s=1.5e-4)
CALIBRATION = Calibration(
    Machine("a CPU", 2, "6.1"),
    "2.21.0",
    "0.1.0",
    "2026-01-31T12:00:00Z",
    {"grpc": GRPC, "grpc++": WIRE},
    Kernels(3e-5, 1e-9, 1e-5, 5e-10),
    measured_workers=2,
    measured_ps=2,
)
JOB = sources.one_big(CALIBRATION.kernels)
CALIBRATION = dataclasses.replace(CALIBRATION, jobs={"ctr": JOB})


def question(
    placement: str = "round_robin", side: str = "grpc++", **shape: object
) -> PredictionRequest:
    of = Shape(**{"workers": 4, "ps": 2, **shape})  # type: ignore[arg-type]
    return PredictionRequest(JOB, CALIBRATION, side, placement, of, steps=20)


class TestRecords:
    def test_a_calibration_is_read_as_it_was_kept(self, tmp_path: Path) -> None:
        path = tmp_path / "calibration.json"
        path.write_text(json.dumps(CALIBRATION.to_document()))
        assert calibration_file.read(path) == CALIBRATION

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("{", "is not JSON"),
            ("[]", "is not a record of"),
            ('{"command": "bench train"}', "is not a record of"),
            ('{"command": "plan calibrate"}', "is not a record of .*: "),
            (json.dumps({**CALIBRATION.to_document(), "costs": [1]}), "Expected"),
            (json.dumps({**CALIBRATION.to_document(), "measured_ps": "two"}), "`int`, got `str`"),
        ],
    )
    def test_what_is_no_calibration_is_refused(self, tmp_path: Path, text: str, says: str) -> None:
        path = tmp_path / "other.json"
        path.write_text(text)
        with pytest.raises(TensorwireError, match=rf"other\.json.*{says}") as caught:
            calibration_file.read(path)
        assert str(caught.value).count(str(path)) == 1

    def test_a_calibration_that_is_kept_is_the_users_own(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
        assert not calibration_file.own_path().exists()
        path = calibration_file.keep(CALIBRATION)
        assert path == calibration_file.own_path()
        assert calibration_file.read(path) == CALIBRATION


class TestLoads:
    def test_a_part_has_its_rows_bytes_and_all_the_tensors(self) -> None:
        split = JobVariable(
            Variable("split", (101, 4), 4), Transfer(1, 80), Transfer(1, 400), ps_cpu_s=1.0
        )
        job = JobModel("j", "", 1, (split,), 0.0)
        plan = dataclasses.replace(placed(job, "round_robin", 2), tasks={"split": (0, 1)})
        first, second = loads(job, plan)
        assert first.pulled.bytes == pytest.approx(400 * 51 / 101)
        assert (first.pulled.tensors, second.asked.tensors) == (1, 1)
        assert first.pulled.bytes + second.pulled.bytes == pytest.approx(400)
        assert first.cpu_s + second.cpu_s == pytest.approx(1.0)

    def test_loads_that_are_nearly_equal_count_as_equal_and_add_up(self) -> None:
        hot = PsLoad(pulled=Transfer(9, 9e6))
        others = [PsLoad(pulled=Transfer(1, 1e5 + each)) for each in range(20)]
        made = alike([*others[:10], hot, *others[10:], PsLoad()], GRPC, 4)
        assert made[10] == hot
        assert len(set(made)) == 3
        assert made[21] == PsLoad()
        assert sum(each.bytes for each in made) == pytest.approx(
            sum(each.bytes for each in others) + 9e6
        )


class TestSweep:
    def test_the_bend_is_where_the_ps_has_no_more_to_give(self) -> None:
        curve = search.sweep(question(ps=1), search.parse("workers=1..40"))
        most, best = curve.best
        assert curve.bend is not None
        assert 2 <= curve.bend <= most
        at = dict(curve.points)[curve.bend]
        # A few flows that share one link leave a part of it idle.
        assert 0.65 * best.steps_per_s < at.steps_per_s
        alone = curve.points[0][1].steps_per_s
        # Up to the bend each worker adds speed, and after it hardly.
        assert at.steps_per_s > 0.6 * curve.bend * alone
        assert best.steps_per_s < 2 * at.steps_per_s

    def test_a_curve_that_only_rises_has_no_bend(self) -> None:
        curve = search.sweep(question("balanced", ps=40, cores=64.0), search.parse("workers=1..4"))
        assert curve.bend is None
        assert [number for number, _ in curve.points] == [1, 2, 3, 4]

    @pytest.mark.parametrize("text", ["workers", "workers=5..5", "workers=0..5", "links=1..2"])
    def test_what_is_no_range_is_refused(self, text: str) -> None:
        with pytest.raises(UsageError, match=r"workers=1\.\.1000"):
            search.parse(text)

    def test_a_long_range_is_looked_at_where_it_is_small_most_closely(self) -> None:
        points = search.parse("workers=1..1000").points()
        assert (points[0], points[-1]) == (1, 1000)
        assert 10 < len(points) < 20


class TestTarget:
    def test_the_smallest_reaches_it_and_one_worker_less_does_not(self) -> None:
        asked = question("balanced", cores=4.0)
        (best,) = search.smallest([asked], 300.0)
        assert best.prediction.steps_per_s >= 300
        workers = best.question.shape.workers
        assert best.question.having(workers=workers - 1).answer().steps_per_s < 300
        assert best.cores == 4 * (workers + best.question.shape.ps)

    def test_the_cores_of_containers_count_where_they_have_limits(self) -> None:
        limited = question("balanced", workers=3, ps=2, worker_cores=0.5, ps_cores=2.0)
        assert search.cores_of(limited.shape) == 3 * 0.5 + 2 * 2.0

    @pytest.fixture
    def few_workers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Uses fewer workers than the command would try, which takes ten seconds of CPU."""
        monkeypatch.setattr(search, "MOST_WORKERS", 100)

    @pytest.mark.usefixtures("few_workers")
    def test_what_no_cluster_reaches_is_said(self) -> None:
        slow = question(link_bytes_per_s=1e5)
        with pytest.raises(TensorwireError, match="no cluster of up to"):
            search.smallest([slow], 1e4)

    @pytest.mark.usefixtures("few_workers")
    def test_what_no_cluster_reaches_is_not_simulated(self) -> None:
        asked = question("balanced")
        simulated: list[int] = []
        with (
            mock.patch.object(
                PredictionRequest, "answer", lambda self: simulated.append(self.shape.ps)
            ),
            pytest.raises(TensorwireError, match="no cluster of up to"),
        ):
            search.smallest([asked], 1e9)
        assert simulated == []

    @pytest.mark.parametrize("training", ["async", "sync"])
    def test_the_bound_is_that_of_the_answer(self, training: str) -> None:
        asked = question("balanced", workers=3, ps=2)
        asked = asked.having(job=dataclasses.replace(asked.job, training=training))
        assert asked.bound() == pytest.approx(asked.answer().bound_steps_per_s)


class TestSideBySide:
    def test_processes_give_the_same_answers_in_the_same_order(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = [question(placement, workers=4, ps=2) for placement in ("balanced", "round_robin")]
        alone = [each.answer() for each in asked]
        monkeypatch.setattr(prediction, "_WORTH_A_PROCESS", 1)
        monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
        steps: list[int] = []

        assert prediction.answers(asked, steps.append) == alone
        assert steps == [each.worker_steps for each in asked]
        with pytest.raises(UsageError, match="no costs of grpc"):
            prediction.answers([each.having(side="grpc++ fused") for each in asked])


class TestAdvice:
    def test_placing_the_big_variable_in_parts_is_what_helps_one_hot_ps(self) -> None:
        asked = question(workers=30, ps=4)
        prediction = asked.answer()
        found = search.changes(asked, prediction)
        assert "balanced" in found[0].text
        assert "ps:0 has 100% of all bytes for big" in found[0].text
        assert found[0].gain > 2
        assert search.saturated(prediction).startswith("ps:0")
        assert not any("workers" in each.text for each in found if each.helps)

    def test_what_is_known_or_cannot_help_is_not_simulated(self) -> None:
        asked = question(workers=30, ps=4)
        by_bytes = asked.having(placement="balanced")
        known = [(each, each.answer()) for each in (asked, by_bytes)]
        tried: list[str] = []
        found = search.changes(*known[0], known, tried.append)
        assert found == search.changes(*known[0])
        assert {c.text: c.steps_per_s for c in found}[found[0].text] == known[1][1].steps_per_s
        assert found[0].text not in tried
        # One ps holds everything, so twice the workers or twice the ps do not help.
        assert {"take 8 ps", "take 60 workers"} <= {c.text for c in found if not c.helps}
        assert not any(text in tried for text in ("take 8 ps", "take 60 workers"))


class TestExactRewrites:
    def test_the_job_that_sends_less_is_predicted_and_advised(self) -> None:
        less = dataclasses.replace(
            JOB,
            variables=tuple(
                dataclasses.replace(v, pulled=v.pulled.times(0.2), pushed=v.pushed.times(0.2))
                for v in JOB.variables
            ),
        )
        job = dataclasses.replace(JOB, exact=less)
        calibration = dataclasses.replace(
            CALIBRATION, costs={"grpc++": WIRE, "grpc++ exact": WIRE}, jobs={"x": job}
        )
        asked = dataclasses.replace(
            question(link_bytes_per_s=1.25e7),
            job=sources.of_calibrated(calibration, "x").having(straggler_sigma=0.1),
            calibration=calibration,
        )
        assert asked.job.exact is not None
        assert asked.job.exact.straggler_sigma == 0.1
        stock = asked.answer()
        exact = asked.having(side="grpc++ exact")
        assert exact.answer().steps_per_s > 3 * stock.steps_per_s
        assert exact.answer().steps_per_s <= exact.bound()
        assert "rewrite graphs (exact_rewrites)" in {c.text for c in search.changes(asked, stock)}

    def test_a_job_that_nobody_measured_with_them_is_refused(self) -> None:
        calibration = dataclasses.replace(CALIBRATION, costs={"grpc++ exact": WIRE})
        asked = dataclasses.replace(question(side="grpc++ exact"), calibration=calibration)
        with pytest.raises(UsageError, match="what the exact rewrites save for one-big is not"):
            asked.answer()
        assert not asked.knows_exact


class TestShape:
    @pytest.mark.parametrize(
        ("text", "rate"), [("10gbit", 1.25e9), ("500mbit", 6.25e7), ("none", None)]
    )
    def test_links_are_read(self, text: str, rate: float | None) -> None:
        assert link_bytes_per_s(text) == rate

    @pytest.mark.parametrize("text", ["10", "fast", "0gbit", "10 parsec"])
    def test_what_is_no_rate_is_refused(self, text: str) -> None:
        with pytest.raises(UsageError, match="10gbit"):
            link_bytes_per_s(text)


class TestSources:
    def test_a_graphs_crossings_are_ids_rows_and_gradients(self) -> None:
        table, dense = Variable("table", (1000, 8), 4), Variable("dense", (16,), 4)
        crossings = (
            Crossing("ids", "table", True, (-1,), 8),
            Crossing("rows", "table", False, (-1, 8), 4),
            Crossing("grad", "table", True, (-1, 8), 4),
            Crossing("read", "dense", False, (16,), 4),
            Crossing("dense grad", "dense", True, (16,), 4),
        )
        job = sources.of_model(Model((table, dense), crossings), CALIBRATION, "a graph", 100)
        of_table, of_dense = job.variables
        assert of_table.asked == Transfer(1, 800)
        assert of_table.pulled == of_table.pushed == Transfer(1, 3200)
        assert of_dense.pulled == of_dense.pushed == Transfer(1, 64)
        kernels = CALIBRATION.kernels
        assert of_dense.ps_cpu_s == pytest.approx(kernels.variable_ps_cpu_s + 128e-9)

    def test_open_sizes_of_a_graph_take_a_batch(self) -> None:
        table = Variable("table", (1000, 8), 4)
        model = Model((table,), (Crossing("rows", "table", False, (-1, 8), 4),))
        with pytest.raises(UsageError, match="--batch"):
            sources.of_model(model, CALIBRATION, "a graph", None)

    def test_a_look_at_a_running_job_tells_its_bytes_and_its_work(self) -> None:
        job = sources.of_record(LOOKS / "one-big-variable.json", CALIBRATION)
        whole = loads(job, placed(job, "round_robin", 1))[0]
        # The look counted at least 168 steps with 12.4 MB in each direction.
        assert whole.pulled.bytes == pytest.approx(12.4e6, rel=0.1)
        assert whole.pushed.bytes == pytest.approx(12.2e6, rel=0.1)
        big = max(job.variables, key=lambda each: each.pulled.bytes)
        assert big.variable.name == "embedding"
        assert big.pushed.bytes > 0.9 * whole.pushed.bytes
        assert 0 < job.worker_cpu_s < 0.05

    def test_a_record_of_training_names_a_model_that_was_calibrated(self, tmp_path: Path) -> None:
        path = tmp_path / "run.json"
        result = {
            "protocol": "grpc",
            "tensor_fuse": False,
            "model": "ctr",
            "steps": 10,
            "steps_per_s": 29.1,
            "examples_per_s": 1.0,
            "auc": 0.7,
            "rpcs_per_step": 1.0,
            "wire_mb_per_step": 1.0,
            "ps": 1,
            "workers": 2,
        }
        record = {
            "command": "bench train",
            "version": "0.1.0",
            "tensorflow": "2.21.0",
            "host": {"cpu": "a", "cores": 2, "kernel": "6"},
            "results": [result],
            "ratios": {},
        }
        path.write_text(json.dumps(record))
        job = sources.of_record(path, CALIBRATION)
        assert job.variables == JOB.variables
        assert "2 workers and 1 ps, steps/s: grpc 29.1" in job.source

    @pytest.mark.parametrize("text", ["[]", '{"command": "bench tcp"}', "nothing"])
    def test_what_is_no_run_is_refused(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "x.json"
        path.write_text(text)
        with pytest.raises(UsageError, match=r"x\.json"):
            sources.of_record(path, CALIBRATION)

    def test_a_model_that_was_not_calibrated_is_refused(self) -> None:
        with pytest.raises(UsageError, match="it has ctr"):
            sources.of_calibrated(CALIBRATION, "flights")
