"""What all commands have in common: where results go, and options of all."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tensorwire.cli.main import main
from tensorwire.errors import UsageError

LOOKS = Path(__file__).parent / "looks"
LOOK = sorted(LOOKS.glob("*.json"))[0]
COMMAND = [sys.executable, "-m", "tensorwire.cli.main"]


def status_of(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(each) for each in arguments])
    assert isinstance(stop.value.code, int)
    return stop.value.code


@pytest.mark.parametrize("where", ["before", "after"])
def test_the_options_of_all_commands_stand_before_or_after_the_command(
    capsys: pytest.CaptureFixture[str], where: str, tmp_path: Path
) -> None:
    nothing = tmp_path / "nothing.json"
    for option in ("--quiet", "--debug"):
        words = ["report", nothing]
        assert status_of(*([option, *words] if where == "before" else [*words, option])) == 2
        said = capsys.readouterr().err
        assert said.endswith(
            f"tensorwire: error: cannot read {nothing}: No such file or directory\n"
        )
        assert ("Traceback" in said) == (option == "--debug")


def test_run_leaves_the_scripts_own_options_to_it(tensorwire: Any, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.argv[1:])")
    done = tensorwire("run", "--quiet", script, "--quiet", "--debug", "--metrics-port")
    assert done.stdout == "['--quiet', '--debug', '--metrics-port']\n", done.stderr


def test_json_is_all_that_standard_output_gets(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kept = tmp_path / "kept.json"
    again = ("doctor", "--record", LOOK, "--output", "json", "--json", kept)
    assert status_of(*again) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads(kept.read_text())
    assert shown["command"] == "doctor"
    assert status_of("k8s", "cases", "--output", "json") == 0
    assert json.loads(capsys.readouterr().out)["cases"][0]["workers"] == 10
    assert status_of("nic", "lo", "--count", "1", "--interval", "0.05", "--output", "json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [[each["interface"] for each in line] for line in lines] == [["lo"], ["lo"]]


def test_the_doctors_findings_are_a_failure_where_that_is_wanted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert status_of("doctor", "--record", LOOK) == 0
    found = json.loads(LOOK.read_text())["findings"]
    capsys.readouterr()
    assert status_of("doctor", "--record", LOOK, "--exit-code") == 1
    said = capsys.readouterr()
    assert found[0]["title"] in said.out
    assert said.err.startswith(f"tensorwire: error: {len(found)} finding")
    assert found[0]["rule"] in said.err


def test_report_shows_the_doctors_record(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert status_of("doctor", "--record", LOOK) == 0
    of_doctor = capsys.readouterr().out
    assert status_of("report", LOOK) == 0
    assert capsys.readouterr().out == of_doctor
    other = shutil.copy(LOOK, tmp_path)
    assert status_of("report", LOOK, other) == 2
    assert "--json wrote" in capsys.readouterr().err


def test_a_reader_that_leaves_early_gives_status_0() -> None:
    command = [*COMMAND, "nic", "lo", "--interval", "0.05", "--count", "20"]
    done = subprocess.run(
        ["bash", "-c", '"$@" | head -1; exit ${PIPESTATUS[0]}', "bash", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_pipe_that_breaks_elsewhere_is_a_failure() -> None:
    code = """if True:
        import os
        from tensorwire.cli import main as frame
        reader, writer = os.pipe()
        os.close(reader)
        write = lambda: os.write(writer, b"x")
        frame.LazyGroup.get_command = lambda *_: frame.click.Command("x", callback=write)
        frame.main(["x"])"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("tensorwire: error: a process that was written to has ended")


def test_the_doctors_help_has_sections(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("doctor", "--help") == 0
    told = capsys.readouterr().out
    for section in ("A running job:", "A placement:", "Input data:", "Two hosts:", "Options:"):
        assert f"\n{section}\n" in told


def test_wrong_usage_is_a_value_error() -> None:
    assert issubclass(UsageError, ValueError)
