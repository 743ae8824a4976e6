"""ParameterServerStrategy with ClusterCoordinator, and Keras's Model.fit under it.

Keras 3 does not support ParameterServerStrategy in Model.fit. The Keras of TensorFlow 2.15 does;
TensorFlow 2.16 and later use it as tf_keras with TF_USE_LEGACY_KERAS=1.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from integration.semantics.support import PROTOCOLS, results_of

from .support import HERE, TENSORWIRE, train

pytestmark = pytest.mark.timeout(600, func_only=True)

SCRIPT = HERE / "strategy_script.py"
STEPS = 30
HAS_KERAS_3 = tf.version.VERSION.split(".")[:2] > ["2", "15"]
LEGACY_KERAS = {"TF_USE_LEGACY_KERAS": "1"} if HAS_KERAS_3 else {}
needs_keras_2 = pytest.mark.skipif(
    HAS_KERAS_3 and importlib.util.find_spec("tf_keras") is None,
    reason="needs tf_keras",
)


def check_coordinated(values: dict[str, object]) -> None:
    scales = sum(i % 5 + 1 for i in range(STEPS))
    assert values["scalar"] == scales
    shard = np.arange(20 * 120) % 11
    expected = -scales * np.concatenate([shard, shard]).reshape(40, 120)
    np.testing.assert_array_equal(values["dense"], expected)


@pytest.mark.core
@pytest.mark.every_version
def test_coordinated_steps_end_with_the_same_variables_as_on_grpc(tmp_path: Path) -> None:
    arguments = ["--mode", "coordinator", "--steps", str(STEPS)]
    jobs = {"ps": 2, "worker": 2, "chief": 1}
    expected = train(SCRIPT, jobs, tmp_path / "grpc", "grpc", arguments)
    wire = train(SCRIPT, jobs, tmp_path / "wire", "grpc++", arguments)
    check_coordinated(wire.values("chief-0"))
    assert wire.used_the_data_plane("ps-0", "ps-1")
    # One worker may have run all functions.
    assert wire.used_the_data_plane("worker-0") or wire.used_the_data_plane("worker-1")
    calls = [wire.reports[f"worker-{index}"]["stats"]["eager_calls"] for index in range(2)]
    assert sum(calls) >= STEPS
    assert wire.values("chief-0") == expected.values("chief-0")


@needs_keras_2
def test_keras_fit_ends_with_the_same_weights_as_on_grpc(tmp_path: Path) -> None:
    arguments = ["--mode", "keras", "--steps", str(STEPS)]
    jobs = {"ps": 2, "worker": 1, "chief": 1}
    expected = train(SCRIPT, jobs, tmp_path / "grpc", "grpc", arguments, env=LEGACY_KERAS)
    wire = train(SCRIPT, jobs, tmp_path / "wire", "grpc++", arguments, env=LEGACY_KERAS)
    assert wire.used_the_data_plane("ps-0", "ps-1", "worker-0")
    loss = wire.reports["chief-0"]["loss"]
    assert loss["last"] < 0.5 * loss["first"]
    assert wire.values("chief-0") == expected.values("chief-0")


@pytest.mark.core
@pytest.mark.every_version
def test_an_unchanged_strategy_script_runs_on_grpc_plus_plus(tmp_path: Path) -> None:
    arguments = ["--mode", "coordinator", "--steps", str(STEPS)]
    prefix = [*TENSORWIRE, "run", "--protocol", "grpc++"]
    jobs = {"ps": 1, "worker": 1, "chief": 1}
    wire = train(SCRIPT, jobs, tmp_path / "wire", None, arguments, prefix)
    check_coordinated(wire.values("chief-0"))
    assert wire.used_the_data_plane("ps-0", "worker-0")


@pytest.mark.every_version
@pytest.mark.usefixtures("plugin")
def test_a_former_clusters_coordinator_that_recovers_disturbs_the_next_cluster_not() -> None:
    clusters = results_of([sys.executable, str(HERE / "former_clusters_script.py")], 500)
    expected = [2 * number + 1 for number in range(12)]
    assert [before for before, _, _ in clusters] == [expected] * 3
    assert [after for _, after, _ in clusters] == [expected] * 3
    # On gRPC the process is aborted.
    assert [ended for _, _, ended in clusters] == ["", *["InvalidArgumentError"] * 2]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_coordinator_gives_each_item_of_a_work_queue_to_one_worker(protocol: str) -> None:
    command = [sys.executable, str(HERE / "work_queue_script.py"), "--protocol", protocol]
    first, second, after = results_of(command, 300)
    assert sorted(first[0]) == [0] * 10 + [1] * 10
    assert first[1] == 10
    # After the checkpoint, and again after it was restored, what it does not have.
    assert second == after == [[1] * 20, 20]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_training_begins_again_from_the_checkpoint_when_a_ps_is_lost(protocol: str) -> None:
    command = [sys.executable, str(HERE / "restarts_script.py"), "--protocol", protocol]
    begun, ended, words = results_of(command, 300)
    # Each call but the first begins with what the former has saved after five steps. On grpc, a
    # training may find its ps lost once more.
    begun = [each for i, each in enumerate(begun) if each != begun[i - 1]]
    assert begun == [[5.0 * call] * 4 for call in range(4)]
    assert ended == [20.0] * 4
    assert "ps:1 at " in words
    assert "accepts no connection after 0.1 s" in words
