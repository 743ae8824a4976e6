"""GitHub's workflows are valid, and run what continuous integration runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"


@pytest.fixture(scope="module")
def actionlint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, built once into the tests' cache, where there is one."""
    made = os.environ.get("TENSORWIRE_CACHE") or tmp_path_factory.mktemp("go")
    program = Path(made).resolve() / ACTIONLINT.rpartition("/")[2] / "actionlint"
    if not program.exists():
        if shutil.which("go") is None:
            pytest.skip("actionlint is built by Go")
        subprocess.run(
            ["go", "install", ACTIONLINT], cwd="/", check=True, timeout=250,
            env={**os.environ, "GOBIN": str(program.parent), "GOFLAGS": "-modcacherw"},
        )  # fmt: skip
    return program


@pytest.mark.timeout(300)
def test_actionlint_accepts_the_workflows(actionlint: Path) -> None:
    done = subprocess.run(
        [actionlint, "-no-color", *WORKFLOWS], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_workflow_runs_what_continuous_integration_runs() -> None:
    commands = [re.findall(r"^ +\.ci/run$", file.read_text(), re.MULTILINE) for file in WORKFLOWS]
    assert any(commands)
    assert os.access(ROOT / ".ci/run", os.X_OK)
