"""examples/hot_ps: one ps of five carries the load, and both top and the doctor say why."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tensorwire.lab import LocalCluster

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600, func_only=True)]

FOLDER = Path(__file__).parents[2] / "examples" / "hot_ps"


@pytest.fixture(scope="module")
def compare() -> Any:
    """The example's compare.py; the plug-in is compiled before its deadlines run."""
    import tensorwire.tf  # noqa: F401

    spec = importlib.util.spec_from_file_location("hot_ps_compare", FOLDER / "compare.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_top_and_the_doctor_name_the_hot_ps_and_its_variable_until_it_is_split(
    compare: Any,
) -> None:
    """The published finding, reproduced and resolved."""
    with LocalCluster({"ps": 5, "worker": 1}) as cluster:
        for index in range(5):
            # What they hold is up to the worker.
            compare.start(cluster, "ps", index, "round_robin", 0)
        moved = reported_bytes(compare, cluster, "round_robin")
        assert moved.index(max(moved)) == 0
        assert max(moved) > 0.8 * sum(moved)
        (line,) = compare.top_says(cluster)
        assert line.startswith("ps:0 moves 9")
        assert line.endswith("% of it is embedding.")
        assert "embedding (51.2 MB) is too big for one ps: ps:0" in compare.doctor_says(cluster)[0]

        (worker,) = (task for task in cluster.tasks if task.job == "worker")
        worker.stop()
        compare.figures_of(cluster, "worker", 0).unlink()
        moved = reported_bytes(compare, cluster, "balanced")
        assert max(moved) <= 1.2 * sum(moved) / len(moved)
        assert compare.top_says(cluster) == []
        assert not any("too big" in each for each in compare.doctor_says(cluster))


def reported_bytes(compare: Any, cluster: LocalCluster, placement: str) -> list[int]:
    """What each ps and a new worker told of each other in some steps."""
    output = compare.start(cluster, "worker", 0, placement, 20)
    moved: list[int] = compare.first_report(output, cluster)["bytes_per_ps"]
    return moved
