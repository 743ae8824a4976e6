"""examples/hot_ps: one ps of three carries most of the load; top and the doctor say why."""

from __future__ import annotations

import importlib.util
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensorwire.bench.lab import LocalCluster

pytestmark = pytest.mark.timeout(600, func_only=True)

LOOKS_DEADLINE_S = 100
PS = 3
FOLDER = Path(__file__).parents[2] / "examples" / "hot_ps"


@pytest.fixture(scope="module")
def compare() -> Any:
    """The example's compare.py; the plug-in is compiled before, because it has timeouts."""
    import tensorwire.tf  # noqa: F401

    spec = importlib.util.spec_from_file_location("hot_ps_compare", FOLDER / "compare.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.core
@pytest.mark.newest
def test_top_and_the_doctor_name_the_hot_ps_and_its_variable_and_balanced_cools_it(
    compare: Any,
) -> None:
    """The published finding, reproduced and resolved."""
    with LocalCluster({"ps": PS, "worker": 1}) as cluster:
        for index in range(PS):
            # The worker decides what they hold.
            compare.start(cluster, "ps", index, "round_robin", 0)
        moved = reported_bytes(compare, cluster, "round_robin")
        assert moved.index(max(moved)) == 0
        assert max(moved) > 0.8 * sum(moved)
        assert said(
            lambda: compare.top_says(cluster), r"ps:0 moves 9\d% .*; \d+% .* is embedding\."
        )
        assert said(
            lambda: compare.doctor_says(cluster),
            r"embedding \(51\.2 MB\) is too big for one ps: ps:0 carries 9\d % of the bytes",
        )

        (worker,) = (task for task in cluster.tasks if task.job == "worker")
        worker.stop()
        moved = reported_bytes(compare, cluster, "balanced")
        assert max(moved) <= 1.2 * sum(moved) / len(moved)


def said(look: Callable[[], list[str]], wanted: str) -> bool:
    """Whether one of several looks says `wanted`; on a busy machine a look may see no step."""
    deadline = time.monotonic() + LOOKS_DEADLINE_S
    while time.monotonic() < deadline:
        if any(re.match(wanted, line) for line in look()):
            return True
    return False


def reported_bytes(compare: Any, cluster: LocalCluster, placement: str) -> list[int]:
    """The bytes that each ps and a new worker exchanged in some steps, by the count of each."""
    output = compare.start(cluster, "worker", 0, placement, 20)
    moved: list[int] = compare.first_report(output, cluster)["bytes_per_ps"]
    return moved
