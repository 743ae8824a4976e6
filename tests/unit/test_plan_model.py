"""The planner's model: shares, the simulation against closed forms, layouts, synchronization."""

import dataclasses

import pytest
from simpy import Environment

from tensorwire.placement.plan import STRATEGIES, Variable
from tensorwire.plan import loads
from tensorwire.plan.cluster import COLOCATED, ISOLATED, LAB_BURST_BYTES, ONE_MACHINE, Shape
from tensorwire.plan.costs import Costs
from tensorwire.plan.job import SYNC, JobModel, JobVariable, Transfer
from tensorwire.plan.prediction import Prediction, predict
from tensorwire.plan.processor_sharing import Join, SharedCapacity

FREE = Costs(0, 0, 0, 0, 0, 0, 0, link_share=1.0)
COSTS = Costs(1e-3, 1e-4, 1e-4, 4e-5, 4e-5, 5e-10, 5e-10, step_latency_s=3e-4)
GBIT = 1.25e8


def variable(name: str, floats: int, ps_cpu_s: float = 0.0) -> JobVariable:
    whole = Variable(name, (floats,), 4)
    moved = Transfer(1, whole.bytes)
    return JobVariable(whole, pulled=moved, pushed=moved, ps_cpu_s=ps_cpu_s)


def job(*variables: JobVariable, worker_cpu_s: float = 5e-3, **fields: object) -> JobModel:
    made = JobModel(
        "test", "a test", 100, variables or (variable("v", 25_000, 1e-3),), worker_cpu_s
    )
    return dataclasses.replace(made, **fields)


ONE_BIG = job(
    variable("big", 3_000_000, 2e-2), *(variable(f"small{n}", 256, 5e-5) for n in range(20))
)


def isolated(
    workers: int, ps: int, cores: float, link_bytes_per_s: float | None, **shape: object
) -> Shape:
    of = {"cores": cores, "link_bytes_per_s": link_bytes_per_s, **shape}
    return Shape(workers, ps, **of)  # type: ignore[arg-type]


def lab(workers: int) -> Shape:
    """Workers and a ps on one machine of two cores."""
    return Shape(workers, 1, ONE_MACHINE, 2, GBIT)


def predicted(
    of: JobModel,
    cluster: Shape,
    costs: Costs = COSTS,
    placement: str = "round_robin",
    **options: int,
) -> Prediction:
    variables = [each.variable for each in of.variables]
    plan = STRATEGIES[placement](variables, cluster.ps, None)
    return predict(of, cluster, "grpc", costs, plan, **options)


def ends(capacity: float, *jobs: tuple[float, float, float]) -> list[float]:
    """The end of each of the jobs (work, weight, limit), which are submitted at the same time."""
    environment = Environment()
    station = SharedCapacity(environment, capacity)
    found = [0.0] * len(jobs)

    def wait(number: int, work: float, weight: float, limit: float):  # type: ignore[no-untyped-def]
        join = Join(environment, 1)
        station.submit(work, weight, limit, 1.0, join)
        yield join.event
        found[number] = environment.now

    for number, each in enumerate(jobs):
        environment.process(wait(number, *each))
    environment.run()
    return found


class TestStation:
    def test_jobs_alike_have_equal_shares(self) -> None:
        assert ends(2.0, (1, 1, 2), (1, 1, 2), (2, 1, 2)) == pytest.approx([1.5, 1.5, 2.0])

    def test_what_a_limited_job_leaves_goes_to_the_others(self) -> None:
        # 0.2 of it for the first, so 0.8 for the second: max-min fair.
        assert ends(1.0, (1, 1, 0.2), (0.8, 1, 1)) == pytest.approx([5.0, 1.0])

    def test_a_bundle_of_flows_has_the_share_of_as_many(self) -> None:
        assert ends(4.0, (3, 3, 4), (1, 1, 4)) == pytest.approx([1.0, 1.0])

    def test_no_job_is_faster_than_its_limit(self) -> None:
        assert ends(16.0, (3, 1, 1)) == pytest.approx([3.0])

    def test_what_a_pause_saved_up_is_done_at_once_and_no_more_than_the_burst(self) -> None:
        environment = Environment()
        station = SharedCapacity(environment, 1.0, burst=2.0)
        saved = [station.at_once(5.0, 1.0)]
        station.submit(3.0, 1.0, 1.0, 1.0, Join(environment, 1))
        for until in (3.0, 4.5, 10.0):  # busy until 3, and then a pause of 1.5
            environment.run(until=until)
            saved.append(station.at_once(5.0, 1.0))
        assert saved == pytest.approx([2.0, 0.0, 1.5, 2.0])

    def test_a_crowded_machine_does_less(self) -> None:
        environment = Environment()
        station = SharedCapacity(environment, 1.0, crowded_factor=2.0)
        joins = [Join(environment, 1) for _ in range(2)]
        for join in joins:
            station.submit(1.0, 1.0, 1.0, 1.0, join)
        environment.run(until=joins[1].event)
        assert environment.now == pytest.approx(4.0)


class TestClosedForms:
    def test_one_worker_takes_the_sum_of_its_phases(self) -> None:
        found = predicted(job(), isolated(1, 1, 16, GBIT), steps=400)
        step_s = (
            (1e-3 + 1e-4)  # start
            + 3e-4
            + max(1e-4 + 4e-5 + 5e-5 + 5e-4, 1e5 / (0.95 * GBIT))  # the ps, or the link
            + (5e-3 + 2 * (4e-5 + 5e-5))
            + max(4e-5 + 5e-5 + 5e-4, 1e5 / (0.95 * GBIT))
        )
        assert found.bound_steps_per_s == pytest.approx(1 / step_s, rel=1e-6)
        assert found.steps_per_s == pytest.approx(1 / step_s, rel=0.02)
        assert found.step.step_s == pytest.approx(step_s, rel=0.02)

    def test_fused_tensors_leave_when_the_last_is_there_and_are_applied_when_all_have_come(
        self,
    ) -> None:
        cluster = isolated(1, 1, 16, GBIT)
        apart = predicted(job(), cluster, FREE)
        fused = predicted(job(), cluster, dataclasses.replace(FREE, is_fused=True))
        wire_s = 2 * 1e5 / GBIT
        ps_s = sum(each.ps_cpu_s for each in job().variables)
        assert 1 / apart.bound_steps_per_s == pytest.approx(5e-3 + max(wire_s, ps_s), rel=1e-6)
        assert 1 / fused.bound_steps_per_s == pytest.approx(5e-3 + wire_s + ps_s, rel=1e-6)
        assert 1 / fused.steps_per_s == pytest.approx(1 / fused.bound_steps_per_s, rel=0.02)

    @pytest.mark.parametrize(
        ("size", "has_flow_control", "is_shared"),
        [(500_000, False, False), (500_000, True, True), (2_000_000, False, True)],
    )
    def test_directions_share_a_link_for_what_a_sender_does_not_hand_over_at_once(
        self, size: int, has_flow_control: bool, is_shared: bool
    ) -> None:
        cluster = lab(3)
        of = job(variable("v", size // 4), worker_cpu_s=1e-6)
        costs = dataclasses.replace(FREE, has_flow_control=has_flow_control)
        both = predicted(of, cluster, costs)
        half = predicted(of, cluster, dataclasses.replace(costs, both_ways=((GBIT, 0.4),)))
        assert (half.steps_per_s < 0.9 * both.steps_per_s) == is_shared

    @pytest.mark.parametrize("share", [1.0, 0.5])
    def test_a_link_of_a_lab_lets_its_burst_through_in_each_direction(self, share: float) -> None:
        """One worker uses one direction after the other, so each direction has its full burst."""
        cluster = lab(1)
        costs = dataclasses.replace(FREE, both_ways=((GBIT, share),))
        of = job(variable("v", 250_000), worker_cpu_s=1e-6)
        step_s = 2 * (1e6 - LAB_BURST_BYTES) / GBIT + 1e-6
        found = predicted(of, cluster, costs, steps=2000)
        assert found.bound_steps_per_s == pytest.approx(1 / step_s, rel=1e-6)
        assert found.steps_per_s == pytest.approx(1 / step_s, rel=0.02)

    def test_small_steps_use_up_a_burst_and_then_have_the_rate_of_the_link(self) -> None:
        cluster = lab(1)
        of = job(variable("v", 25_000), worker_cpu_s=1e-5)
        found = predicted(of, cluster, FREE, steps=2000)
        assert found.bound_steps_per_s == pytest.approx(GBIT / 1e5, rel=1e-6)
        assert found.steps_per_s == pytest.approx(GBIT / 1e5, rel=0.02)

    def test_many_workers_reach_what_the_link_of_the_ps_carries_and_no_more(self) -> None:
        found = predicted(job(), isolated(60, 1, 64, GBIT))
        assert found.bound_steps_per_s == pytest.approx(0.95 * GBIT / 1e5, rel=1e-6)
        assert 0.96 * found.bound_steps_per_s < found.steps_per_s <= found.bound_steps_per_s
        assert found.uses[0].name.startswith("ps:0 link")

    def test_one_machine_is_bound_by_the_cores_that_all_tasks_share(self) -> None:
        cluster = Shape(8, 1, ONE_MACHINE, 2, None)
        found = predicted(job(), cluster)
        cpu_s = 1e-3 + 2e-4 + 4 * (4e-5 + 5e-5) + 1e-3 + 5e-3
        assert found.steps_per_s == pytest.approx(2 / cpu_s, rel=0.03)
        assert found.uses[0].name == "the machine's cores"

    @pytest.mark.parametrize("workers", [2, 5, 8, 20])
    def test_one_shared_ps_is_as_mean_value_analysis_has_it(self, workers: int) -> None:
        """One ps core with processor sharing, and the workers' own time: a product-form network."""
        think_s, demand_s = 8e-3, 2e-3
        of = job(variable("v", 1, demand_s), worker_cpu_s=think_s, straggler_sigma=1.0)
        found = predicted(of, isolated(workers, 1, 1, None), FREE, steps=400)
        queue = 0.0
        for count in range(1, workers + 1):
            response_s = demand_s * (1 + queue)
            rate = count / (think_s + response_s)
            queue = rate * response_s
        assert found.steps_per_s == pytest.approx(rate, rel=0.05)

    @pytest.mark.parametrize("workers", [3, 4, 8])
    def test_workers_meet_by_chance_at_both_directions_of_a_link(self, workers: int) -> None:
        """A product-form network of two equal stations, between which the workers alternate."""
        found = predicted(
            job(variable("v", 250_000), worker_cpu_s=1e-6),
            isolated(workers, 1, 64, GBIT),
            FREE,
            steps=400,
        )
        assert found.steps_per_s == pytest.approx(GBIT / 1e6 * workers / (workers + 1), rel=0.08)

    def test_the_same_seed_predicts_the_same(self) -> None:
        cluster = isolated(8, 2, 4, GBIT)
        first, again, other = (predicted(ONE_BIG, cluster, seed=seed) for seed in (1, 1, 2))
        assert first == again
        assert first.step != other.step


class TestPlacementAndLayout:
    def layouts(self, placement: str) -> tuple[Prediction, Prediction]:
        """Both layouts of case 2 of the published table: 50 workers and 5 ps."""
        limits = {"worker_cores": 0.3, "ps_cores": 2.0}
        together = Shape(50, 5, COLOCATED, 16, 10 * GBIT, **limits)
        apart = isolated(50, 5, 16, 10 * GBIT, workers_per_host=10, **limits)
        first, second = (
            predicted(ONE_BIG, each, placement=placement, steps=25) for each in (together, apart)
        )
        return first, second

    def test_one_big_parameter_makes_one_hot_ps_in_either_layout(self) -> None:
        together, apart = self.layouts("round_robin")
        assert together.steps_per_s == pytest.approx(apart.steps_per_s, rel=0.05)
        for each in (together, apart):
            hot, others = each.tasks[:2]
            assert (hot.task, hot.count, others.count) == ("ps:0", 1, 4)
            assert hot.cores > 1.8
            assert others.cores < 0.1 * 2  # below a tenth of their cores
            assert each.uses[0].name.startswith("ps:0")

    def test_the_parameter_in_parts_lets_all_ps_carry_load(self) -> None:
        for before, after in zip(
            self.layouts("round_robin"), self.layouts("balanced"), strict=True
        ):
            (ps,) = (task for task in after.tasks if task.task == "ps:0")
            assert ps.count == 5
            assert after.steps_per_s > 3 * before.steps_per_s

    def test_a_worker_beside_the_ps_needs_no_link_to_it(self) -> None:
        slow = 1e6
        beside = predicted(ONE_BIG, Shape(1, 1, COLOCATED, 8, slow))
        apart = predicted(ONE_BIG, Shape(1, 1, ISOLATED, 8, slow))
        assert beside.steps_per_s > 10 * apart.steps_per_s

    def test_machines_that_one_stands_for_are_as_each_by_itself(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cluster = Shape(40, 4, COLOCATED, 4, 2 * GBIT)
        exact = predicted(ONE_BIG, cluster, placement="balanced", steps=60)
        monkeypatch.setattr(loads, "MOST_REQUESTS", 0)
        standing = predicted(ONE_BIG, cluster, placement="balanced", steps=60)
        assert standing.steps_per_s == pytest.approx(exact.steps_per_s, rel=0.1)

    def test_a_ps_without_variables_takes_no_part(self) -> None:
        two = job(variable("a", 25_000), variable("b", 25_000))
        found = predicted(two, isolated(2, 3, 4, GBIT))
        idle = found.tasks[-2]
        assert (idle.task, idle.count, idle.cores) == ("ps:2", 1, 0.0)

    def test_communication_threads_bound_a_ps_that_has_cores_left(self) -> None:
        many = job(*(variable(f"v{n}", 64) for n in range(200)), worker_cpu_s=1e-3)
        cluster = isolated(40, 1, 16, None, ps_threads=2)
        found = predicted(many, cluster)
        assert found.uses[0].name == "ps:0 communication threads"
        free = predicted(many, dataclasses.replace(cluster, ps_threads=None))
        assert free.steps_per_s > 3 * found.steps_per_s

    def test_hundreds_of_workers_and_ps_are_predicted(self) -> None:
        tables = job(*(variable(f"v{n}", 1000 + 10 * n, 1e-5) for n in range(60)))
        found = predicted(tables, isolated(300, 30, 16, 10 * GBIT), steps=5)
        assert 0.9 * found.bound_steps_per_s < found.steps_per_s <= found.bound_steps_per_s
        assert sum(t.count for t in found.tasks if t.task.startswith("ps:")) == 30


class TestWaiting:
    CLUSTER = isolated(8, 1, 64, None)

    def test_input_bounds_the_steps(self) -> None:
        found = predicted(job(input_examples_per_s=1000.0), self.CLUSTER)
        assert found.examples_per_s == pytest.approx(8 * 1000, rel=0.02)
        assert found.uses[0].name == "input"
        assert found.step.input_s > 0.08

    def test_input_that_is_fast_enough_is_not_noticed(self) -> None:
        free, fed = (
            predicted(job(input_examples_per_s=rate), self.CLUSTER) for rate in (None, 30_000.0)
        )
        assert fed.steps_per_s == pytest.approx(free.steps_per_s, rel=0.03)

    def test_synchronous_workers_wait_for_the_slowest(self) -> None:
        spread = {"straggler_sigma": 0.8, "worker_cpu_s": 2e-2}
        free = predicted(job(**spread), self.CLUSTER)
        together = predicted(job(**spread, training=SYNC), self.CLUSTER)
        assert together.examples_per_s < 0.7 * free.examples_per_s
        assert together.step.others_s > 0.2 * together.step.step_s
        # One synchronous step is eight steps of workers.
        assert together.examples_per_s == pytest.approx(800 * together.steps_per_s, rel=0.05)
