"""The record of a benchmark: its JSON is an interface for scripts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import tensorwire
from tensorwire.bench.experiments.steps import StepsResult
from tensorwire.bench.experiments.train import TrainResult
from tensorwire.bench.experiments.transfer import TransferResult
from tensorwire.bench.frame import showing
from tensorwire.bench.frame.columns import StepMs
from tensorwire.bench.frame.record import Machine, Noise, Ratio, Record, Result
from tensorwire.cli.options import Output
from tensorwire.errors import TensorwireError

TRANSFER = TransferResult(
    protocol="grpc",
    tensor_fuse=False,
    data_mb=100.0,
    tensors=1,
    iters=30,
    mb_per_s=1200.0,
    step_ms=StepMs(p50=82.1, p90=90.0, min=80.2),
    cpu_s_per_gb=1.9,
)
STEPS = StepsResult(
    protocol="grpc++",
    tensor_fuse=True,
    case="many",
    data_mb=0.8192,
    tensors=200,
    iters=300,
    step_ms=StepMs(p50=2.0, p90=3.0, min=1.0),
)
TRAIN = TrainResult("grpc++", False, "flights", 600, 40.0, 20480.0, 0.71, None, 3.5)


def record(command: str, result: Result) -> Record[Result]:
    return Record(
        command=command,
        tensorflow="2.21.0",
        results=[result],
        ratios={"grpc++/grpc": Ratio(2.5, (2.25, 2.75)), "grpc++/tcp": Ratio(0.9)},
        version="0.1.0",
        host=Machine(cpu="EPYC", cores=2, kernel="6.1"),
        baselines={"tcp": 3800.0},
        noise=Noise(load_start=0.5, load_end=2.0, steal=0.01, scatter={"grpc": 0.05}),
        time="2026-01-31T12:00:00Z",
    )


def test_the_transfer_record_is_to_the_letter() -> None:
    assert json.loads(record("bench transfer", TRANSFER).to_json()) == {
        "command": "bench transfer",
        "version": "0.1.0",
        "tensorflow": "2.21.0",
        "host": {"cpu": "EPYC", "cores": 2, "kernel": "6.1"},
        "time": "2026-01-31T12:00:00Z",
        "results": [
            {
                "protocol": "grpc",
                "tensor_fuse": False,
                "data_mb": 100.0,
                "tensors": 1,
                "iters": 30,
                "mb_per_s": 1200.0,
                "step_ms": {"p50": 82.1, "p90": 90.0, "min": 80.2},
                "cpu_s_per_gb": 1.9,
            }
        ],
        "ratios": {"grpc++/grpc": 2.5, "grpc++/tcp": 0.9},
        "intervals": {"grpc++/grpc": [2.25, 2.75]},
        "ceilings": {"tcp": 3800.0},
        "noise": {"load_start": 0.5, "load_end": 2.0, "steal": 0.01, "scatter": {"grpc": 0.05}},
    }


def test_a_record_from_before_there_were_intervals_and_noise_is_read() -> None:
    document = json.loads(record("bench transfer", TRANSFER).to_json())
    for name in ("time", "intervals", "ceilings", "noise"):
        del document[name]
    old = Record.from_json(json.dumps(document))
    assert old.ratios == {"grpc++/grpc": Ratio(2.5), "grpc++/tcp": Ratio(0.9)}
    assert (old.noise, old.baselines, old.time) == (None, {}, "")


@pytest.mark.parametrize(
    ("command", "result"),
    [
        ("bench transfer", TRANSFER),
        ("bench steps", STEPS),
        ("bench train", TRAIN),
        ("demo", TRAIN),
    ],
)
def test_a_record_survives_its_json(command: str, result: Result) -> None:
    original = record(command, result)
    assert Record.from_json(original.to_json()) == original


def test_floats_have_six_digits() -> None:
    text = record("bench steps", STEPS).to_json()
    original = Record.from_json(text)
    noisy = Record("bench steps", "2.21.0", [STEPS], {"grpc++/grpc": Ratio(2.123456789)})
    assert '"grpc++/grpc": 2.12346' in noisy.to_json()
    assert original.to_json() == text


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"command": "bench nothing"}', '{"command": "bench transfer", "results": 1}'],
)
def test_what_is_no_record_is_one_clear_error(text: str) -> None:
    with pytest.raises(TensorwireError, match="no record of a benchmark"):
        Record.from_json(text)


@pytest.mark.parametrize(
    ("part", "damaged"),
    [
        ("results", []),
        ("results", [{"protocol": 1}]),
        ("host", {"cpu": "EPYC", "cores": "two", "kernel": "6.1"}),
        ("host", None),
        ("noise", "loud"),
        ("noise", {"load_start": 0.5, "load_end": 2.0, "steal": "some", "scatter": {}}),
        ("noise", {"load_start": 0.5, "load_end": 2.0, "steal": 0.1, "scatter": [0.05]}),
        ("time", 1767225600),
        ("ratios", {"grpc++/grpc": None}),
        ("intervals", {"grpc++/grpc": [2.25]}),
    ],
)
def test_a_record_of_which_a_part_is_something_else_is_none(part: str, damaged: Any) -> None:
    document = json.loads(record("bench transfer", TRANSFER).to_json())
    with pytest.raises(TensorwireError, match="no record of a benchmark"):
        Record.from_json(json.dumps({**document, part: damaged}))


LAB = {
    "hosts": 2,
    "rate_mbit_per_s": [1000.0, None],
    "delay_us": 50.0,
    "cpus": None,
    "network": True,
    "notes": ["no limit of CPUs"],
}


def with_lab(**changed: Any) -> str:
    document = json.loads(record("bench transfer", TRANSFER).to_json())
    return json.dumps({**document, "lab": {**LAB, **changed}})


def test_the_lab_of_a_record_is_read() -> None:
    assert Record.from_json(with_lab()).lab == LAB


@pytest.mark.parametrize(
    "damaged",
    [
        {"hosts": "two"},
        {"network": 1},
        {"notes": [1]},
        {"rate_mbit_per_s": "1gbit"},
        {"delay_us": ["50us", None]},
        {"cpus": {}},
    ],
    ids=str,
)
def test_a_lab_that_is_something_else_is_no_record(damaged: dict[str, Any]) -> None:
    with pytest.raises(TensorwireError, match="no record of a benchmark"):
        Record.from_json(with_lab(**damaged))


def test_host_and_version_are_this_machines() -> None:
    here = Record("demo", "2.21.0", [], {})
    assert here.version == tensorwire.__version__
    assert here.host.cores == len(os.sched_getaffinity(0))
    assert here.host.kernel == os.uname().release
    assert here.host.cpu


def test_a_file_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "record.json"
    with pytest.raises(TensorwireError, match=r"cannot write .*record\.json: No such file"):
        showing.give(record("bench transfer", TRANSFER), Output(json_path=path))
