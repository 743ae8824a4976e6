"""`tensorwire bench all`: a failed layer or Ctrl-C does not lose the results of other layers.

The layers here are stand-ins; the real layers have their own tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from tensorwire.bench.experiments import all_layers
from tensorwire.bench.experiments.all_layers import Layers
from tensorwire.bench.experiments.runs import read
from tensorwire.bench.experiments.transfer import TransferOfSizes, TransferResult
from tensorwire.bench.frame.columns import StepMs
from tensorwire.bench.frame.experiment import Experiment
from tensorwire.bench.frame.hosts import HostPool
from tensorwire.bench.frame.record import Ratio, Record, Result
from tensorwire.bench.frame.tasks import Watcher
from tensorwire.bench.frame.variants import PROTOCOLS
from tensorwire.cli.main import main
from tensorwire.errors import TensorwireError

RECORD = Record[Result](
    "bench transfer",
    "2.21.0",
    [TransferResult("grpc", False, 100.0, 1, 30, 1000.0, StepMs(50.0, 55.0, 45.0), 1.9)],
    {"grpc++/grpc 100 MB": Ratio(2.0, (1.9, 2.1))},
)


Run = Callable[[Watcher, HostPool], Record[Result]]


def good(watcher: Watcher, host_pool: HostPool) -> Record[Result]:
    watcher.activity("measuring")
    watcher.advance()
    return RECORD


def failing(watcher: Watcher, host_pool: HostPool) -> Record[Result]:
    raise TensorwireError("the ps went")


def broken(watcher: Watcher, host_pool: HostPool) -> Record[Result]:
    raise ZeroDivisionError("a mistake of ours")


def interrupted(watcher: Watcher, host_pool: HostPool) -> Record[Result]:
    raise KeyboardInterrupt


class Seen:
    """The calls that a watcher received."""

    def __init__(self) -> None:
        self.activities: list[str] = []
        self.advanced = 0

    def activity(self, text: str) -> None:
        self.activities.append(text)

    def advance(self, count: int = 1) -> None:
        self.advanced += count


@dataclass
class StandIn:
    """A layer of three blocks."""

    run: Run
    blocks: int = 3


def layers(*runs: Run) -> Layers:
    return {run.__name__: cast(Experiment[Any, Any], StandIn(run)) for run in runs}


def test_a_layer_that_fails_does_not_stop_the_others() -> None:
    seen = Seen()
    suite = all_layers.run(layers(failing, broken, good), ["a note"], seen)
    assert suite.records == [RECORD]
    assert suite.failures == {
        "failing": "the ps went",
        "broken": "ZeroDivisionError: a mistake of ours",
    }
    assert suite.notes == ["a note"]
    assert suite.ratios == {"grpc++/grpc 100 MB good": Ratio(2.0, (1.9, 2.1))}
    assert seen.advanced == 9
    assert seen.activities == ["3 of 3, good: measuring"]


def test_ctrl_c_ends_the_call_and_keeps_what_was_measured() -> None:
    suite = all_layers.run(layers(good, interrupted, broken), [], Seen())
    assert suite.records == [RECORD]
    assert suite.failures == {"interrupted": "interrupted", "broken": "interrupted"}


def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *runs: object, path: Path
) -> tuple[int, str, str]:
    monkeypatch.setattr(all_layers, "layers", lambda *_: layers(*runs))  # type: ignore[arg-type]
    with pytest.raises(SystemExit) as stop:
        main(["bench", "all", "--json", str(path), "--report", str(path.with_suffix(".html"))])
    captured = capsys.readouterr()
    return int(stop.value.code or 0), captured.out, captured.err


def test_the_files_have_the_others_and_the_failure_and_the_status_is_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "all.json"
    status, out, _ = run(capsys, monkeypatch, good, failing, path=path)
    assert status == 1
    assert "warning: failing: the ps went" in out.splitlines()
    suite = read(path)
    assert suite.failures == {"failing": "the ps went"}
    assert "failing: the ps went" in path.with_suffix(".html").read_text()


def test_all_layers_measured_is_status_0(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    status, _, _ = run(capsys, monkeypatch, good, path=tmp_path / "all.json")
    assert status == 0


def test_after_ctrl_c_the_files_have_what_was_measured_before(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "all.json"
    status, _, err = run(capsys, monkeypatch, good, interrupted, path=path)
    assert status == 130
    assert err.splitlines()[-1] == (
        "tensorwire: interrupted; what was measured before is in "
        f"{path} and {path.with_suffix('.html')}"
    )
    suite = read(path)
    assert suite.records == [RECORD]


def test_after_ctrl_c_in_the_first_layer_nothing_is_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    status, _, err = run(capsys, monkeypatch, interrupted, path=tmp_path / "all.json")
    assert status == 130
    assert err.splitlines()[-1] == "tensorwire: interrupted; nothing was written"
    assert list(tmp_path.iterdir()) == []


def test_where_every_layer_fails_the_files_say_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "all.json"
    status, out, _ = run(capsys, monkeypatch, failing, path=path)
    assert status == 1
    assert "failing: the ps went" in out
    assert "failing: the ps went" in path.with_suffix(".html").read_text()


def test_sizes_that_memory_does_not_hold_are_left_out_with_a_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = psutil.virtual_memory()._replace(available=2_000_000_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    notes: list[str] = []
    all_layers.layers(False, {"protocols": PROTOCOLS, "transport": "tcp"}, notes)
    assert notes == ["tensors of 1 GB are left out: there is not enough free memory for them"]


@pytest.mark.parametrize(
    ("sizes_bytes", "baseline_bytes"),
    [((64, 10**6, 10**8, 10**9), 10**8), ((64, 10**6), 10**6), ((10**9,), 10**9)],
)
def test_baselines_are_measured_at_100_mb_or_the_nearest_size(
    sizes_bytes: tuple[int, ...], baseline_bytes: int
) -> None:
    assert TransferOfSizes(sizes_bytes=sizes_bytes).baseline_bytes == baseline_bytes
