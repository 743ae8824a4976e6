"""The measurement of a real job in a lab (bench/lab_job.py)."""

import pytest

from tensorwire.bench.experiments.lab_job import StepCase, TableVariable, running
from tensorwire.bench.frame.variants import Setting

pytestmark = pytest.mark.newest
FLOATS = 1 << 16


class Quiet:
    def activity(self, text: str) -> None:
        pass

    def advance(self, count: int = 1) -> None:
        pass


def test_a_step_moves_what_its_tables_say_and_cases_follow_one_another() -> None:
    with running(Setting("grpc++"), 1, 1, Quiet(), 1e9) as job:
        for case in (
            StepCase("both", tables=(TableVariable(FLOATS), TableVariable(FLOATS))),
            StepCase("pull", tables=(TableVariable(FLOATS),), push=False),
        ):
            job.open(case)
            measured = job.measure(0.1, warm_up_s=0.0, least_steps=4)
            job.close()
            steps = measured.steps["worker:0"]
            assert steps >= 4
            assert measured.steps_per_s > 0
            assert set(measured.cpu_s) == {"ps:0", "worker:0"}
            if not job.has_network:
                pytest.skip("bytes are counted on the links of a lab: network namespaces take root")
            size = 4 * FLOATS * len(case.tables)
            assert measured.received_bytes["worker:0"] >= steps * size
            assert (measured.received_bytes["ps:0"] >= steps * size) == case.push
