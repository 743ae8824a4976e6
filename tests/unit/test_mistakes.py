"""A user's mistakes at the command line: each gives a one-line error before anything starts.

This table is where the words of errors are pinned; other tests look for what an error is about.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.calibration import CALIBRATION
from tensorwire.cli.main import main
from tensorwire.doctor.check import machine
from tensorwire.errors import UsageError
from tensorwire.plugin import loader
from tensorwire.settings import misspelt

_CLUSTER_FORM = (
    'it has the form {"cluster": {"ps": ["host:port", ...], "worker": [...]}, "task": '
    '{"type": "worker", "index": 0}}'
)
_NO_TASK = (
    "no grpc++ task with an endpoint runs here: start tasks with `tensorwire run --protocol grpc++ "
    "--metrics-port 0`, or with TENSORWIRE_METRICS=0 if the script names grpc++, or name "
    "them: --endpoints HOST:PORT,…"
)
LOOK = Path(__file__).with_name("looks") / "slow-link.json"


def _why_not_in_proc() -> str | None:
    """The error for creating a file in /proc, which differs between root and other users."""
    try:
        Path("/proc/record.json").touch()
    except OSError as error:
        return error.strerror
    raise AssertionError("a file in /proc")


WRONG_USAGE: dict[str, dict[str, str]] = {
    "": {
        "nosuch": "No such command 'nosuch'.",
        "docter": "No such command 'docter'. Did you mean 'doctor'?",
        "--nonsense": "No such option '--nonsense'.",
        "--quiet --verbose nic": "--quiet and --verbose exclude each other",
    },
    "run": {
        "nosuch.py": "there is no script nosuch.py",
        ".": ". is a folder: name the script in it",
        "python3 script.py": "there is no script python3: leave it out, Python runs the script",
        "--metrics-host 0.0.0.0 script.py": "--metrics-host is for --metrics-port: give that, too",
        "--keep-whole x script.py": "--keep-whole is for --placement balanced",
        "--protocol grpc+ script.py": (
            "Invalid value for '--protocol': 'grpc+' is not one of 'grpc++', 'grpc'."
        ),
        "--wire-dtype float8 script.py": (
            "Invalid value for '--wire-dtype': 'float8' is not one of 'bfloat16', 'float16'."
        ),
        "--metrics-port 99999 script.py": (
            "Invalid value for '--metrics-port': 99999 is not in the range 0<=x<=65535."
        ),
        "": "Missing argument 'SCRIPT'.",
        "--traffic run.json script.py": "--traffic is for --placement balanced",
    },
    "place": {
        "--script . --ps 2": ". is a folder: name the script in it",
        "": "Missing option '--ps'.",
        "--ps 0": "Invalid value for '--ps': 0 is not in the range x>=1.",
        "--ps 2 --graph g --script s": "give --graph or --script, one of them",
        "--ps 2 --graph g -- --flag": "--flag: only --script takes arguments",
    },
    "top": {
        "--endpoints nonsense": "'nonsense' is not an endpoint: write HOST:PORT or unix:PATH",
        "--endpoints ,": "--endpoints is empty: write HOST:PORT or unix:PATH, or leave it out",
    },
    "doctor": {
        "--data-mb-per-step 5": "--data-mb-per-step is for --data: give that, too",
        "--endpoints ,": "--endpoints is empty: write HOST:PORT or unix:PATH, or leave it out",
        "--placement-file other.json --endpoints 127.0.0.1:1": (
            "other.json is not a placement plan, which `tensorwire place --json` writes"
        ),
        "--record look.json --link fast": "--link fast is no rate: write it as 10gbit or 500mbit",
    },
    "plan": {
        "--calibration other.json --workers 2": (
            "other.json: this file is not a record of `plan calibrate`"
        ),
        "--model nosuch": (
            "the calibration has no model nosuch (it has ctr, flights): run `tensorwire plan "
            "calibrate`, or give --graph or --from"
        ),
        "--link nan": "--link nan: write it as 10gbit or 500mbit, or none",
        "--case 9": "there is no case 9; there are 1, 2, 3, 4",
        "--case 1 --workers 3": "--workers and --case exclude each other",
        "--calibration costs.json --workers 0": (
            "Invalid value for '--workers': 0 is not in the range 1<=x<=10000."
        ),
        "--calibration costs.json --cores nan": (
            "Invalid value for '--cores': 'nan' is not a finite number."
        ),
        "--calibration costs.json --layout heap": (
            "--layout: unknown value heap: choose from colocated, isolated, one-machine"
        ),
        "--calibration costs.json --protocols tcp": (
            "--protocols: unknown value tcp: choose from grpc, grpc++, grpc++ fused, grpc++ exact"
        ),
        "--calibration costs.json --placement ,": (
            "--placement is empty: choose from round_robin, greedy, balanced"
        ),
        "--calibration costs.json --case 1 --steps-per-s 9": (
            "--case and --steps-per-s: one question at a time"
        ),
        "--calibration costs.json --sweep workers": (
            "--sweep workers: write it as workers=1..1000 or ps=1..20"
        ),
        "--calibration costs.json --model one-big --from x.json": (
            "give --from, --model or --graph, one of them"
        ),
        "--calibration costs.json --model one-big": (
            "the calibration has no costs of grpc++: it has grpc"
        ),
        "--calibration costs.json --model one-big --batch-size 3": (
            "--batch-size is for --graph: one-big was measured with 256"
        ),
        "--calibration none.json --model one-big": (
            "cannot read none.json: No such file or directory"
        ),
        "--calibration broken.json --model one-big": (
            "broken.json is not JSON: Expecting property name enclosed in double quotes: line 1"
            " column 2 (char 1)"
        ),
    },
    "check": {
        "--ps-hosts host1": '"host1" is not an address: write host:port, as in 127.0.0.1:2222',
        "--worker-hosts host1:99999": (
            '"host1:99999" is not an address: write host:port, as in 127.0.0.1:2222'
        ),
        "--timeout nan": "Invalid value for '--timeout': 'nan' is not a finite number.",
        "--worker-hosts ,": "--worker-hosts is empty: write host:port, as in 127.0.0.1:2222",
    },
    "build": {
        "--what": "No such option '--what'.",
        "--force --list": "--force compiles, and --list compiles nothing: leave one out",
        "--output json": "--output is for --list",
    },
    "demo": {
        "--protocols grpc+": "unknown protocol 'grpc+': --protocols takes grpc, grpc++ or both",
    },
    "bench all": {
        "--protocols grpc --transport auto": (
            "--transport auto is for grpc++, and --protocols grpc leaves it out"
        ),
    },
    "bench rpc": {
        "--job client": (
            "two hosts need --job server on one and --job client --target HOST:PORT on the other"
        ),
        "--job client --target no..host:1": (
            '"no..host:1" is not an address: write host:port, as in 127.0.0.1:2222'
        ),
        "--message-size 3000000000": (
            "Invalid value for '--message-size': 3000000000 is not in the range 0<=x<=2147483647."
        ),
        "--concurrency 2 --channels 3": "--concurrency 2 leaves some of --channels 3 unused",
        "--target a:1": (
            "two hosts need --job server on one and --job client --target HOST:PORT on the other"
        ),
        "--job server --response-size 1": (
            "--job server: --message-size is the size of its responses"
        ),
    },
    "bench serve": {
        "--clients 0": "Invalid value for '--clients': 0 is not in the range 1<=x<=20000.",
        "--clients 4 --busy 5": "--busy 5: give a number from 1 to 4",
        "--clients 16 --requests 100": (
            "--requests 100 is less than one request per round and client: give at least 160"
        ),
        "--message-size 0": (
            "Invalid value for '--message-size': 0 is not in the range 1<=x<=1073741824."
        ),
        "--payload lumpy": (
            "Invalid value for '--payload': 'lumpy' is not one of 'uniform', 'random', 'skewed'."
        ),
        "--tensor-fuse": "No such option '--tensor-fuse'.",
    },
    "bench steps": {
        "--protocols grpc++,grpc++": "--protocols grpc++,grpc++ names a protocol twice",
        "--json /proc/record.json": (
            f"--json /proc/record.json: cannot write in /proc: {_why_not_in_proc()}"
        ),
        "--ps-hosts , --worker-hosts a:1 --job ps": (
            "--ps-hosts is empty: write host:port, as in 127.0.0.1:2222"
        ),
        "--ps-hosts a:1 --worker-hosts b:1 --job ps --lab hosts=2": (
            "--lab makes hosts of its own: leave out --ps-hosts and the like"
        ),
        "--case huge": "Invalid value for '--case': 'huge' is not one of 'tiny', 'many'.",
    },
    "bench tails": {
        "--data-mb 0.5": "Invalid value for '--data-mb': 0.5 is not in the range 1<=x<=1000.",
        "--layer rpc --tensor-fuse": "--layer rpc has no graph to rewrite: leave out the rewrites",
    },
    "bench tcp": {
        "--port 1234": (
            "--port is for two hosts: give --job server, or --job client --target HOST:PORT, too"
        ),
        "--streams 1,x": "--streams 1,x: give numbers, as in 1,4",
        "--streams 0": "--streams takes numbers from 1 to 256, as in 1,4",
        "--streams 2,2": "--streams names a number twice",
        "--message-size 0": "--message-size 0: give bytes from 1 to 1073741824, for 4 streams",
    },
    "bench train": {
        "--lab hosts=2,rate=quick": (
            "--lab: rate=quick is not understood: write it as 10gbit or 500mbit"
        ),
        "--ps-hosts a:1 --worker-hosts b:1 --job worker --task 1": "--task 1: --worker-hosts has 1",
        "--lab hosts=2 --transport memory": (
            "--transport memory: the hosts of a lab share no memory"
        ),
        "--model resnet": (
            "Invalid value for '--model': 'resnet' is not one of 'flights', 'ctr', 'wide_deep', "
            "'dlrm', 'deepfm', 'din'."
        ),
        "--model ctr --data train.txt": (
            "--data is for --model wide_deep, dlrm or deepfm, not ctr"
        ),
    },
    "bench transfer": {
        "--data-mb nan": "--data-mb nan: a tensor has at least one float, 0.000004 MB",
        "--protocols grpc --transport memory": (
            "--transport memory is for grpc++, and --protocols grpc leaves it out"
        ),
        "--json no/record.json": "--json no/record.json: there is no folder no",
        "--task 1": "--task is for several hosts: give --ps-hosts, --worker-hosts and --job, too",
        "--ps-hosts 127.0.0.1:5 --worker-hosts 127.0.0.1:5 --job ps": (
            "/job:worker/task:0 and /job:ps/task:0 have the same address 127.0.0.1:5"
        ),
        "--data-mb 0": "--data-mb 0: a tensor has at least one float, 0.000004 MB",
        "--data-mb inf": "--data-mb inf: a tensor has at least one float, 0.000004 MB",
        "--data-mb 2500 --protocols grpc,grpc++": (
            "grpc cannot send 2500 MB: its messages are limited to 2 GB; use --protocols grpc++"
        ),
        "--protocols http": "unknown protocol 'http': --protocols takes grpc, grpc++ or both",
        "--protocols ,": "--protocols names no protocol: give grpc, grpc++ or grpc,grpc++",
        "--transport pigeon": (
            "Invalid value for '--transport': 'pigeon' is not one of 'auto', 'tcp', 'memory'."
        ),
        "--iters 0": "Invalid value for '--iters': 0 is not in the range x>=1.",
        "--job ps": "several hosts need --ps-hosts, --worker-hosts and --job (ps or worker)",
        "--ps-hosts a:1 --worker-hosts b:1": (
            "several hosts need --ps-hosts, --worker-hosts and --job (ps or worker)"
        ),
        "--ps-hosts a:1 --worker-hosts b:1 --job ps --task 1": "--task 1: --ps-hosts has 1",
        "--ps-hosts a:1 --worker-hosts b:1,c:1 --job ps": (
            "bench transfer uses one ps and one worker"
        ),
        "--ps-hosts a:1 --worker-hosts nowhere --job ps": (
            '"nowhere" is not an address: write host:port, as in 127.0.0.1:2222'
        ),
    },
    "k8s compare": {
        "--case 1 --workers 2": (
            "k8s compare runs on a cluster: give --image. Without a cluster, `make k8s-compare` in "
            "a clone of tensorwire runs the jobs on this machine (see docs/kubernetes.md)"
        ),
    },
    "k8s render": {
        "--name a --image [] --script script.py --case 1": (
            "'[]' is not the name of an image: write REGISTRY/NAME:TAG"
        ),
    },
}
"""For each command: wrong arguments, and what is said, with status 2. What ends in a full stop was
said by click; then the command's help is named."""


@dataclass(frozen=True)
class Mistake:
    """A command line and its complete output; {folder} is the working directory."""

    command: str
    says: str
    status: int = 2
    env: dict[str, str] = field(default_factory=dict)


def _usage(command: str, arguments: str, says: str) -> Mistake:
    line = " ".join(filter(None, ("tensorwire", command)))
    help_ = f" (see `{line} --help`)" if says.endswith((".", "?")) else ""
    return Mistake(" ".join(filter(None, (command, arguments))), says + help_)


MISTAKES = [
    *(_usage(command, *each) for command, rows in WRONG_USAGE.items() for each in rows.items()),
    Mistake(
        "doctor --endpoints 127.0.0.1:1",
        "127.0.0.1:1 gives no metrics: Connection refused; start the task on grpc++ with "
        "TENSORWIRE_METRICS=HOST:PORT, "
        "or leave it out of --endpoints (see docs/metrics.md)",
        status=1,
    ),
    Mistake(
        "doctor --record other.json",
        "other.json is no record of a look at a job, which `tensorwire doctor --json` writes: "
        "it names no command",
    ),
    Mistake(
        "report other.json",
        "other.json is no record of a benchmark: give files that --json wrote",
    ),
    Mistake("report none.json", "cannot read none.json: No such file or directory"),
    Mistake(
        "plan --calibration other.json --workers 2",
        "other.json: this file is not a record of `plan calibrate`",
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
        "check --ps-hosts 127.0.0.1:1",
        "cannot read {folder}: Is a directory",
        env={"TENSORWIRE_ENDPOINT_MAP": "{folder}"},
    ),
    Mistake("top", f"{_NO_TASK} (see docs/metrics.md#tensorwire-top)", status=1),
    Mistake(
        "doctor",
        f"nothing to look at: {_NO_TASK}; or examine something else with --layers, --graph, "
        "--placement-file, --data or --record (see docs/doctor.md)",
        status=1,
    ),
    Mistake(
        "run script.py",
        "the job token: cannot read none, which TENSORWIRE_TOKEN_FILE names: No such file or "
        "directory (see SECURITY.md)",
        env={"TENSORWIRE_TOKEN_FILE": "none"},
    ),
    Mistake(
        "run script.py",
        "the job token: cannot read /: Is a directory (see SECURITY.md)",
        env={"TENSORWIRE_TOKEN_FILE": "/"},
    ),
    Mistake(
        "run script.py",
        "the job token: /dev/null has 0 characters, and 32 to 1024 are wanted; make one with: "
        "python3 -c 'import secrets; print(secrets.token_hex(32))' (see SECURITY.md)",
        env={"TENSORWIRE_TOKEN_FILE": "/dev/null"},
    ),
    Mistake(
        "run script.py",
        "the job token: both TENSORWIRE_TOKEN_FILE and TENSORWIRE_TOKEN are set: unset one (see "
        "SECURITY.md)",
        env={"TENSORWIRE_TOKEN": "x" * 40, "TENSORWIRE_TOKEN_FILE": "/dev/null"},
    ),
    Mistake(
        "run script.py",
        "environment variable TENSORWIRE_TLS: TLS takes its key from the job token, and there is "
        "none: set TENSORWIRE_TOKEN_FILE (see SECURITY.md)",
        env={"TENSORWIRE_TLS": "1"},
    ),
]


@pytest.fixture
def nothing_else_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No process may start, and no running task is found."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))


@pytest.mark.usefixtures("nothing_else_runs")
@pytest.mark.parametrize(
    "mistake", MISTAKES, ids=[" ".join([each.command, *each.env]) for each in MISTAKES]
)
def test_a_mistake_is_answered_in_one_line(
    mistake: Mistake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tensorwire.doctor.check.machine", lambda: iter(()))
    for name, value in mistake.env.items():
        monkeypatch.setenv(name, value.replace("{folder}", str(tmp_path)))
    Path("script.py").write_text("raise AssertionError('it ran')\n")
    Path("other.json").write_text(json.dumps({"a": 1}))
    Path("broken.json").write_text("{")
    Path("costs.json").write_text(json.dumps(CALIBRATION))
    shutil.copy(LOOK, "look.json")

    with pytest.raises(SystemExit) as stop:
        main(mistake.command.split())

    says = mistake.says.replace("{folder}", str(tmp_path))
    assert capsys.readouterr() == ("", f"tensorwire: error: {says}\n")
    assert stop.value.code == mistake.status


@pytest.mark.usefixtures("nothing_else_runs")
@pytest.mark.parametrize(
    ("command", "status", "says"),
    [
        ("bench transfer --protocols grpc++ --data-mb 10000000", 1, "GB of memory"),
        (
            "bench rpc --message-size 2000000000 --concurrency 10000",
            1,
            "use a smaller --message-size or --concurrency",
        ),
        ("bench serve --clients 1000", 2, "a process may open 1024 files and sockets here"),
    ],
)
def test_what_this_machine_cannot_do_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    status: int,
    says: str,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 1024))
    with pytest.raises(SystemExit) as stop:
        main(command.split())
    assert stop.value.code == status
    assert says in capsys.readouterr().err.splitlines()[-1]


def test_a_group_without_a_command_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([])

    said = capsys.readouterr().err
    assert said.startswith("Usage: tensorwire [OPTIONS] COMMAND [ARGS]...\n\n")
    assert stop.value.code == 2


WORDS = (
    "words of exact, tensor_fuse, unique_pull, summed_push, bundles, bfloat16, float16 and "
    "float32=PATTERN, and one dtype at most"
)


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("TENSORWIRE_POOL_MB", "1GB", "a number"),
        ("TENSORWIRE_TENSOR_FUSE", "maybe", "1 or 0"),
        ("TENSORWIRE_REWRITES", "fast", WORDS),
        ("TENSORWIRE_REWRITES", "bfloat16,float16", WORDS),
    ],
)
def test_a_setting_with_a_bad_value_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError) as caught:
        loader.check_environment()
    said = f"environment variable {variable}={value}: expected {expected}"
    assert str(caught.value) == said


def test_a_misspelt_setting_is_told_with_the_right_one() -> None:
    environment = {
        "TENSORWIRE_REWRITE": "exact",
        "TENSORWIRE_REWRITES": "exact",
        "TENSORWIRE_TOKEN": "x" * 40,  # an old name
        "TENSORWIRE_PS_0_SERVICE_HOST": "10.0.0.1",  # as Kubernetes sets it
    }
    assert [*misspelt(environment)] == [
        "TENSORWIRE_REWRITE is no setting and has no effect: set TENSORWIRE_REWRITES"
    ]


def test_a_misspelt_setting_is_told_at_the_start_and_by_check(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TENSORWIRE_POOL_GB", "2")
    said = "TENSORWIRE_POOL_GB is no setting and has no effect: set TENSORWIRE_POOL_MB"

    loader.check_environment()

    assert caplog.messages == [f"tensorwire: {said}"]
    assert [each.title for each in machine() if each.rule == "settings"] == [said]
