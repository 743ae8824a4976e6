"""The command line in general: help, errors, exit statuses."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

import tensorwire as package
from tensorwire.bench import commands as bench
from tensorwire.cli import main as frame
from tensorwire.errors import TensorwireError, UsageError


def test_version_is_the_packages(tensorwire: Any) -> None:
    assert tensorwire("--version").stdout.split()[-1] == package.__version__


def test_the_package_runs_as_the_command(python: Any) -> None:
    done = python("-m", "tensorwire", "--version")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == package.__version__


def test_help_lists_every_command_and_loads_none(python: Any) -> None:
    code = (
        "import sys\nfrom tensorwire.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as stop: assert stop.code == 0\n"
        "ours = ('tensorwire.cli.', 'tensorwire.bench')\n"
        "frame = {f'tensorwire.cli.{m}' for m in ('main', 'click_extensions')}\n"
        "loaded = {m for m in sys.modules if m.startswith(ours)}\n"
        "print(sorted(loaded - frame))"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    for name in frame.COMMANDS:
        assert f"\n  {name} " in done.stdout
    assert done.stdout.endswith("[]\n")


@pytest.mark.parametrize(
    "command", [*frame.COMMANDS, *(f"bench {experiment}" for experiment in bench.COMMANDS)]
)
def test_every_command_explains_itself_with_an_example(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        frame.main([*command.split(), "--help"])
    assert not stop.value.code
    told = capsys.readouterr().out
    examples = re.split(r"^ *Examples?[:,]", told, flags=re.MULTILINE)[1]
    assert f"tensorwire {command}" in " ".join(examples.split())
    if command in ("bench transfer", "bench rpc", "bench tcp"):
        assert "10^6 bytes" in told  # what a MB is


def test_importing_the_package_loads_no_tensorflow(python: Any) -> None:
    code = (
        "import sys, tensorwire, tensorwire.cluster, tensorwire.cli.main, tensorwire.cli.run\n"
        "import tensorwire.plugin.build, tensorwire.run.environment, tensorwire.bench.commands\n"
        "from tensorwire.bench.experiments import transfer, steps, rpc, tcp, train, tensors\n"
        "import tensorwire.bench.frame.several_hosts\n"
        "assert not {'tensorflow', 'tensorwire.tf'} & set(sys.modules)\n"
        "assert not any('tensorwire_plugin' in line for line in open('/proc/self/maps'))"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


def run_main(monkeypatch: pytest.MonkeyPatch, raised: BaseException, *arguments: str) -> int:
    @click.command()
    def command() -> None:
        raise raised

    monkeypatch.setattr(frame.LazyGroup, "get_command", lambda *_: command)
    with pytest.raises(SystemExit) as stop:
        frame.main([*arguments, "any"])
    assert isinstance(stop.value.code, int)
    return stop.value.code


@pytest.mark.parametrize(
    ("error", "status"), [(TensorwireError("do this"), 1), (UsageError("do this"), 2)]
)
def test_our_errors_are_one_line_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: TensorwireError,
    status: int,
) -> None:
    assert run_main(monkeypatch, error) == status
    assert capsys.readouterr().err == "tensorwire: error: do this\n"


def test_debug_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, TensorwireError("do this"), "--debug") == 1
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert shown.endswith("tensorwire: error: do this\n")


def test_quiet_leaves_results_and_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    def command() -> None:
        click.echo("a result")
        click.echo("progress", err=True)
        raise TensorwireError("do this")

    monkeypatch.setattr(frame.LazyGroup, "get_command", lambda *_: command)
    for options, errors in (
        ([], "progress\ntensorwire: error: do this\n"),
        (["--quiet"], "tensorwire: error: do this\n"),
    ):
        with pytest.raises(SystemExit):
            frame.main([*options, "any"])
        assert capsys.readouterr() == ("a result\n", errors)


def test_verbose_shows_the_log(python: Any) -> None:
    code = (
        "import logging, os\n"
        "from tensorwire.cli import main as frame\n"
        "def show(*_):\n"
        "    level = os.environ['TF_CPP_MIN_LOG_LEVEL']\n"
        "    logging.getLogger('tensorwire').info('a line, %s', level)\n"
        "frame.LazyGroup.get_command = lambda *_: frame.click.Command('any', callback=show)\n"
        "frame.main(['--verbose', 'any'])"
    )
    assert python("-c", code).stderr == "tensorwire: a line, 0\n"


def test_an_interrupt_is_one_line_and_status_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, KeyboardInterrupt()) == 130
    # On a new line, after the terminal's ^C.
    assert capsys.readouterr().err == "\ntensorwire: interrupted\n"


def test_a_reader_that_leaves_early_is_no_error() -> None:
    tensorwire = [sys.executable, "-m", "tensorwire.cli.main", "--help"]
    done = subprocess.run(
        ["sh", "-c", '"$@" | true', "sh", *tensorwire], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""


def test_ctrl_c_while_a_script_runs_ends_it_as_python_would(tmp_path: Path) -> None:
    script = tmp_path / "sleeps.py"
    script.write_text("import time\nprint('ready', flush=True)\ntime.sleep(60)\n")
    with subprocess.Popen(
        [sys.executable, "-m", "tensorwire.cli.main", "run", str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors
