"""Runs the commands of the tutorials from top to bottom, as a reader would."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import tensorflow as tf

from harness.shell import run_script
from tensorwire.bench.lab import cgroups
from tensorwire.bench.lab.ports import PortLease
from tensorwire.metrics.observed_job import FOLDER_VARIABLE

DOCS = Path(__file__).parents[2] / "docs"
ELSEWHERE = {"kubernetes", "from-tfjob", "hosts"}
"""Pages whose commands other tests run."""
HAS_ESTIMATOR = tf.version.VERSION.split(".")[:2] == ["2", "15"]
IS_ROOT = os.geteuid() == 0
_COMMANDS = re.compile(r"^```bash\n(.*?)^```", re.DOTALL | re.MULTILINE)
_PORT = re.compile(r"127\.0\.0\.1:(\d+)")
_RATE = re.compile(r"^(\d+) steps a second", re.MULTILINE)


@dataclass(frozen=True)
class Tutorial:
    """The expected output of a page's commands."""

    page: str
    rates: int
    """Number of lines "N steps a second". How fast that is depends on the machine."""
    says: tuple[str, ...] = ()
    """Texts that appear in this order."""


needs_lab = pytest.mark.skipif(
    not IS_ROOT or not cgroups.paths(1), reason="slow links and slow hosts take root"
)

PAGES = [
    pytest.param(Tutorial("first-job", rates=3), marks=pytest.mark.newest),
    pytest.param(
        Tutorial(
            "hot-ps",
            rates=2,
            says=("embedding (25.6 MB) is too big for one ps", "▲ ps:0 moves"),
        ),
        marks=pytest.mark.newest,
    ),
    pytest.param(
        Tutorial(
            "slow-network-or-ps",
            rates=0,
            says=(
                *("== links of 200 Mbit/s", "1. The link of host"),
                *("== the ps has", "1. The ps have no CPU left"),
                *("== each worker has", "1. The workers have no CPU left"),
            ),
        ),
        marks=[pytest.mark.newest, needs_lab],
    ),
    pytest.param(
        Tutorial(
            "slow-worker",
            rates=0,
            says=(
                *("worker:2 took 150 steps", "worker:2 on", "is a straggler"),
                *("tensorwire.tf.WorkQueue", "worker:2 took"),
            ),
        ),
        marks=pytest.mark.newest,
    ),
    pytest.param(
        Tutorial("switch", rates=6),
        marks=pytest.mark.skipif(
            not HAS_ESTIMATOR, reason="tf.estimator is in TensorFlow up to 2.15"
        ),
    ),
    pytest.param(Tutorial("from-deeprec", rates=2), marks=pytest.mark.newest),
]


def commands(page: str, ports: PortLease) -> str:
    """All commands of a tutorial as one script, with its ports replaced by free ones."""
    script = "".join(_COMMANDS.findall(next(DOCS.rglob(f"{page}.md")).read_text()))
    free = {port: ports.take() for port in _PORT.findall(script)}
    return _PORT.sub(lambda match: f"127.0.0.1:{free[match[1]]}", script)


def test_every_page_with_commands_is_run() -> None:
    run = {getattr(each, "values", (each,))[0].page for each in PAGES}
    pages = {path.stem for path in DOCS.rglob("*.md") if "\n```bash" in path.read_text()}
    assert pages == run | ELSEWHERE
    assert pages >= {path.stem for path in DOCS.glob("tutorials/*.md")}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("tutorial", PAGES, ids=lambda tutorial: tutorial.page)
def test_every_command_of_a_tutorial_works(tutorial: Tutorial, tmp_path: Path) -> None:
    shutil.copytree(DOCS.parent / "examples", tmp_path / "examples")
    ports = PortLease()
    # Hides the tasks of other tests from the doctor.
    variables = {FOLDER_VARIABLE: str(tmp_path)}
    try:
        status, said = run_script(commands(tutorial.page, ports), tmp_path, variables, 500)
    finally:
        ports.release()
    assert status == 0, said
    assert len(_RATE.findall(said)) == tutorial.rates, said
    begin = 0
    for text in tutorial.says:
        begin = said.find(text, begin)
        assert begin >= 0, f"no {text!r} in its place:\n{said}"
