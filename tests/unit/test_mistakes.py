"""A user's mistakes at the command line: each gives a one-line error before anything starts."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tensorwire.check.machine import machine
from tensorwire.cli.main import main
from tensorwire.plugin import loader
from tensorwire.plugin.settings import misspelt

_CLUSTER_FORM = (
    'it has the form {"cluster": {"ps": ["host:port", ...], "worker": [...]}, "task": '
    '{"type": "worker", "index": 0}}'
)
_NO_ENDPOINT = "--endpoints is empty: write HOST:PORT or unix:PATH, or leave it out"
_TWO_HOSTS = "two hosts need --job server on one and --job client --target HOST:PORT on the other"


def _why_not_in_proc() -> str | None:
    """The error for creating a file in /proc, which differs between root and other users."""
    try:
        Path("/proc/record.json").touch()
    except OSError as error:
        return error.strerror
    raise AssertionError("a file in /proc")


@dataclass(frozen=True)
class Mistake:
    """A command line and its complete output; {folder} is the working directory."""

    command: str
    says: str
    status: int = 2
    env: dict[str, str] = field(default_factory=dict)


MISTAKES = [
    Mistake("nosuch", "No such command 'nosuch'. (see `tensorwire --help`)"),
    Mistake("run nosuch.py", "there is no script nosuch.py"),
    Mistake("run .", ". is a folder: name the script in it"),
    Mistake(
        "run python3 script.py",
        "there is no script python3: leave it out, Python runs the script",
    ),
    Mistake(
        "run --metrics-host 0.0.0.0 script.py",
        "--metrics-host is for --metrics-port: give that, too",
    ),
    Mistake("run --keep-whole x script.py", "--keep-whole is for --placement balanced"),
    Mistake("place --script . --ps 2", ". is a folder: name the script in it"),
    Mistake(
        "run --protocol grpc+ script.py",
        "Invalid value for '--protocol': 'grpc+' is not one of 'grpc++', 'grpc'. "
        "(see `tensorwire run --help`)",
    ),
    Mistake(
        "run --wire-dtype float8 script.py",
        "Invalid value for '--wire-dtype': 'float8' is not one of 'bfloat16', 'float16'. "
        "(see `tensorwire run --help`)",
    ),
    Mistake(
        "run --metrics-port 99999 script.py",
        "Invalid value for '--metrics-port': 99999 is not in the range 0<=x<=65535. "
        "(see `tensorwire run --help`)",
    ),
    Mistake(
        "bench steps --protocols grpc++,grpc++",
        "--protocols grpc++,grpc++ names a protocol twice",
    ),
    Mistake(
        "bench transfer --data-mb nan",
        "--data-mb nan: a tensor has at least one float, 0.000004 MB",
    ),
    Mistake(
        "bench transfer --protocols grpc --transport memory",
        "--transport memory is for grpc++, and --protocols grpc leaves it out",
    ),
    Mistake(
        "bench all --protocols grpc --transport auto",
        "--transport auto is for grpc++, and --protocols grpc leaves it out",
    ),
    Mistake(
        "bench steps --json /proc/record.json",
        f"--json /proc/record.json: cannot write in /proc: {_why_not_in_proc()}",
    ),
    Mistake("bench transfer --json no/record.json", "--json no/record.json: there is no folder no"),
    Mistake("bench rpc --job client", _TWO_HOSTS),
    Mistake(
        "bench tcp --port 1234",
        "--port is for two hosts: give --job server, or --job client --target HOST:PORT, too",
    ),
    Mistake(
        "bench transfer --task 1",
        "--task is for several hosts: give --ps-hosts, --worker-hosts and --job, too",
    ),
    Mistake(
        "bench steps --ps-hosts , --worker-hosts a:1 --job ps",
        "--ps-hosts is empty: write host:port, as in 127.0.0.1:2222",
    ),
    Mistake(
        "bench rpc --job client --target no..host:1",
        '"no..host:1" is not an address: write host:port, as in 127.0.0.1:2222',
    ),
    Mistake(
        "bench transfer --ps-hosts 127.0.0.1:5 --worker-hosts 127.0.0.1:5 --job ps",
        "/job:worker/task:0 and /job:ps/task:0 have the same address 127.0.0.1:5",
    ),
    Mistake(
        "bench train --lab hosts=2,rate=quick",
        "--lab: rate=quick is not understood: write it as 10gbit or 500mbit",
    ),
    Mistake(
        "top --endpoints nonsense",
        "'nonsense' is not an endpoint: write HOST:PORT or unix:PATH",
    ),
    Mistake(
        "doctor --endpoints 127.0.0.1:1",
        "127.0.0.1:1 gives no metrics: Connection refused; start the task with "
        "TENSORWIRE_METRICS_PORT set, or leave it out of --endpoints (see docs/metrics.md)",
        status=1,
    ),
    Mistake("top --endpoints ,", _NO_ENDPOINT),
    Mistake("doctor --endpoints ,", _NO_ENDPOINT),
    Mistake(
        "doctor --record other.json",
        "other.json is no record of a look at a job, which `tensorwire doctor --json` writes: "
        "it names no command",
        status=1,
    ),
    Mistake(
        "doctor --plan other.json --endpoints 127.0.0.1:1",
        "other.json is not a placement plan, which `tensorwire place --json` writes",
    ),
    Mistake(
        "report other.json",
        "other.json is no record of a benchmark: give files that --json wrote",
        status=1,
    ),
    Mistake("report none.json", "cannot read none.json: No such file or directory", status=1),
    Mistake(
        "plan --calibration other.json --workers 2",
        "other.json: this file is not a record of `plan calibrate`",
    ),
    Mistake(
        "plan --model nosuch",
        "the calibration has no model nosuch (it has ctr, flights): run `tensorwire plan "
        "calibrate`, or give --graph or --from",
    ),
    Mistake("plan --link nan", "--link nan: write it as 10gbit or 500mbit, or none"),
    Mistake("plan --case 9", "there is no case 9; there are 1, 2, 3, 4"),
    Mistake("plan --case 1 --workers 3", "--workers and --case exclude each other"),
    Mistake("plan --price-core 1", "--price-core is for --target: give that, too"),
    Mistake(
        "k8s render --name a --image [] --script script.py --case 1",
        "'[]' is not the name of an image: write REGISTRY/NAME:TAG",
    ),
    Mistake("place --ps 2", "give --graph or --script, one of them"),
    Mistake(
        "check --ps-hosts host1", '"host1" is not an address: write host:port, as in 127.0.0.1:2222'
    ),
    Mistake(
        "check --worker-hosts host1:99999",
        '"host1:99999" is not an address: write host:port, as in 127.0.0.1:2222',
    ),
    Mistake(
        "check --timeout nan",
        "Invalid value for '--timeout': 'nan' is not a finite number. "
        "(see `tensorwire check --help`)",
    ),
    Mistake(
        "check",
        f"TF_CONFIG is not JSON (Expecting ':' delimiter: line 1 column 11 (char 10)); "
        f"{_CLUSTER_FORM}",
        env={"TF_CONFIG": '{"cluster"'},
    ),
    Mistake(
        "check",
        f'TF_CONFIG: "cluster": "ps" is not a list of addresses; {_CLUSTER_FORM}',
        env={"TF_CONFIG": '{"cluster": {"ps": "a:1"}}'},
    ),
    Mistake(
        "check",
        f'TF_CONFIG: "task": "index" is \'x\', not a number; {_CLUSTER_FORM}',
        env={"TF_CONFIG": '{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": "x"}}'},
    ),
    Mistake(
        "check",
        f"TF_CONFIG: the cluster has no /job:worker/task:1; its jobs: ps (1), worker (1); "
        f"{_CLUSTER_FORM}",
        env={
            "TF_CONFIG": '{"cluster": {"ps": ["a:1"], "worker": ["b:1"]}, '
            '"task": {"type": "worker", "index": 1}}'
        },
    ),
    Mistake(
        "check",
        f'TF_CONFIG: "clusters" should be "cluster"; {_CLUSTER_FORM}',
        env={"TF_CONFIG": '{"clusters": {"ps": ["a:1"]}}'},
    ),
    Mistake(
        "check --worker-hosts ,", "--worker-hosts is empty: write host:port, as in 127.0.0.1:2222"
    ),
    Mistake(
        "check --ps-hosts 127.0.0.1:1",
        "cannot read {folder}: Is a directory",
        env={"TENSORWIRE_ENDPOINT_MAP": "{folder}"},
    ),
]


@pytest.mark.parametrize(
    "mistake", MISTAKES, ids=[" ".join([each.command, *each.env]) for each in MISTAKES]
)
def test_a_mistake_is_answered_in_one_line(
    mistake: Mistake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr("tensorwire.check.machine.machine", lambda: iter(()))
    for name, value in mistake.env.items():
        monkeypatch.setenv(name, value.replace("{folder}", str(tmp_path)))
    Path("script.py").write_text("raise AssertionError('it ran')\n")
    Path("other.json").write_text(json.dumps({"a": 1}))

    with pytest.raises(SystemExit) as stop:
        main(mistake.command.split())

    says = mistake.says.replace("{folder}", str(tmp_path))
    assert capsys.readouterr().err == f"tensorwire: error: {says}\n"
    assert stop.value.code == mistake.status


def test_a_group_without_a_command_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([])

    said = capsys.readouterr().err
    assert said.startswith("Usage: tensorwire [OPTIONS] COMMAND [ARGS]...\n\n")
    assert stop.value.code == 2


def test_a_misspelt_setting_is_told_with_the_right_one() -> None:
    environment = {
        "TENSORWIRE_TENSORFUSE": "1",
        "TENSORWIRE_TENSOR_FUSE": "1",
        "TENSORWIRE_PS_0_SERVICE_HOST": "10.0.0.1",  # as Kubernetes sets it
    }
    assert [*misspelt(environment)] == [
        "TENSORWIRE_TENSORFUSE is no setting and has no effect: set TENSORWIRE_TENSOR_FUSE"
    ]


def test_a_misspelt_setting_is_told_at_the_start_and_by_check(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TENSORWIRE_POOL_GB", "2")
    said = "TENSORWIRE_POOL_GB is no setting and has no effect: set TENSORWIRE_POOL_MB"

    loader.check_environment()

    assert caplog.messages == [f"tensorwire: {said}"]
    assert [each.text for each in machine() if each.subject == "settings"] == [said]
