"""`tensorwire place` and `run --placement`: mistakes give a one-line error with advice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tensorwire.errors import TensorwireError
from tensorwire.placement import default
from tensorwire.placement.plan import Variable
from tensorwire.placement.traffic import Traffic


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("1/0", "failed before training: ZeroDivisionError: division by zero"),
        ("import sys; sys.exit('no data')", "failed before training: no data"),
        ("", "made no variable for a ps: give it the arguments of its worker 0 after --"),
        ("import time; time.sleep(60)", "has not opened a training session within 1 s"),
    ],
)
def test_what_is_wrong_with_a_script_is_one_line(
    tensorwire: Any, tmp_path: Path, code: str, says: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(code)
    done = tensorwire("place", "--ps", "2", "--timeout", "1" if "sleep" in code else "50",
                      "--script", script)  # fmt: skip
    assert done.returncode == 1
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_dry_run_leaves_no_process_behind(tensorwire: Any, tmp_path: Path) -> None:
    """Also not a process that the script started itself."""
    pid = tmp_path / "pid"
    script = tmp_path / "script.py"
    script.write_text(
        "import subprocess, sys, pathlib\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(pid)!r}).write_text(str(child.pid))\n"
        "1/0\n"
    )
    done = tensorwire("place", "--ps", "2", "--script", script)
    assert done.returncode == 1
    status = Path(f"/proc/{pid.read_text()}/status")
    assert not status.exists() or "State:\tZ" in status.read_text()


def test_a_script_that_fails_dry_is_not_run(tensorwire: Any, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('built', flush=True); 1/0")
    done = tensorwire("run", "--placement", "balanced", script)
    assert (done.returncode, done.stdout) == (1, "")
    assert "failed before training: ZeroDivisionError" in done.stderr


def test_more_variables_than_an_environment_holds_are_refused() -> None:
    variables = [Variable(f"layer_{i * 7919 % 10007}/{i}", (i, 7), 4) for i in range(30_000)]
    with pytest.raises(TensorwireError, match="too many"):
        default.encode(variables, None)


def test_traffic_survives_the_environment() -> None:
    document = {"variables": {"a": {"bytes_per_step": 3.0, "rows": [[0, 2, 3.0]]}, "b": 4}}
    read = Traffic.from_document(document)
    variables = (Variable("a", (2, 3), 4),)
    known = default._Planner(default.encode(variables, read))._known
    assert (known.variables, known.traffic) == (variables, read)
