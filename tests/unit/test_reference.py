"""The reference agrees with the code: records, metrics, exit statuses, completion, pictures."""

from __future__ import annotations

import html
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.calibration import CALIBRATION
from tensorwire.metrics import prometheus
from tensorwire.metrics.rates import JobRates
from tensorwire.metrics.task_metrics import PoolMetrics, ProcessMetrics, TaskMetrics
from tensorwire.placement.plan import Variable, balanced
from tensorwire.placement.traffic import Traffic

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    pytest.importorskip("kubernetes", reason="a record of `k8s compare` is one of them")
    text: str = runpy.run_path(str(DOCS / "reference/schema.py"))["text"]()
    document: dict[str, Any] = json.loads(text)
    return document


def test_the_schema_of_records_is_what_the_code_makes(schema: dict[str, Any]) -> None:
    kept = json.loads((DOCS / "reference/records.schema.json").read_text())
    assert kept == schema, "run: python docs/reference/schema.py"


def is_known(document: Any, schema: dict[str, Any]) -> bool:
    """Whether the schema has records of this command."""
    definitions = schema["$defs"].values()
    known = {
        command
        for each in definitions
        for command in each.get("properties", {}).get("command", {}).get("enum", ())
    }
    return isinstance(document, dict) and document.get("command") in {*known, "doctor"}


def test_the_schema_describes_every_record_that_is_kept(schema: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(schema)
    files = [*(ROOT / "benchmarks/results").glob("*.json"), *(ROOT / "tests/unit/looks").glob("*")]
    documents = {path: json.loads(path.read_text()) for path in files}
    known = {path: each for path, each in documents.items() if is_known(each, schema)}
    assert len(known) > 30
    for path, document in known.items():
        assert validator.is_valid(document), path


def test_the_schema_refuses_what_is_no_record(schema: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(schema)
    record = json.loads((ROOT / "benchmarks/results/transfer-1mb-2.21.0.json").read_text())
    record["results"][0]["mb_per_s"] = "fast"
    assert not validator.is_valid(record)


def test_the_schema_describes_what_top_and_the_endpoint_give(schema: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(schema)
    for given in (TASK, JobRates((), (), {})):
        assert validator.is_valid(json.loads(json.dumps(given.to_json())))


def undescribed(document: Any, schema: dict[str, Any], part: dict[str, Any]) -> set[str]:
    """Names in a document that this part of the schema does not describe."""
    parts, waiting = [], [part]
    while waiting:
        one = waiting.pop()
        if "$ref" in one:
            waiting.append(schema["$defs"][one["$ref"].rpartition("/")[2]])
        waiting += [*one.get("allOf", ()), *one.get("anyOf", ())]
        parts.append(one)
    if isinstance(document, list):
        items = [one["items"] for one in parts if "items" in one]
        return {name for e in document for each in items for name in undescribed(e, schema, each)}
    if not isinstance(document, dict):
        return set()
    known = {name: e for one in parts for name, e in one.get("properties", {}).items()}
    below = [undescribed(document[n], schema, known[n]) for n in document if n in known]
    return (set(document) - set(known)).union(*below)


PLANS = [
    ("--case", "1", "--protocols", "grpc"),
    ("--model", "one-big", "--protocols", "grpc", "--sweep", "workers=1..3"),
    ("--model", "one-big", "--protocols", "grpc", "--steps-per-s", "5"),
]


@pytest.mark.parametrize("question", PLANS, ids=["case", "sweep", "target"])
def test_the_schema_describes_all_of_a_prediction(
    tensorwire: Any, schema: dict[str, Any], tmp_path: Path, question: tuple[str, ...]
) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    (tmp_path / "costs.json").write_text(json.dumps(CALIBRATION))
    written = tmp_path / "plan.json"
    costs = ("--calibration", tmp_path / "costs.json")
    done = tensorwire("plan", *costs, *question, "--json", written)
    assert done.returncode == 0, done.stderr
    document = json.loads(written.read_text())
    part = {"$ref": "#/$defs/PlanRecord"}
    jsonschema.Draft202012Validator({**part, "$defs": schema["$defs"]}).validate(document)
    assert undescribed(document, schema, part) == set()
    assert any(document[name] for name in ("predictions", "curves", "offers"))


@pytest.mark.parametrize("with_traffic", [False, True])
def test_the_schema_describes_all_of_a_placement(
    schema: dict[str, Any], with_traffic: bool
) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    traffic = Traffic({"table": 10.0}) if with_traffic else None
    plans = [balanced([Variable("table", (1000, 16), 4)], 2, traffic).to_document()]
    document = json.loads(json.dumps({"ps": 2, "plans": plans}))
    part = {"$ref": "#/$defs/PlacementPlans"}
    jsonschema.Draft202012Validator({**part, "$defs": schema["$defs"]}).validate(document)
    assert undescribed(document, schema, part) == set()


TASK = TaskMetrics(
    process=ProcessMetrics("here", 42, 2, 1.5e9, 12.5, 10**9),
    clock_us=1, recv_tensors=1, pushed_tensors=2, served_tensors=3, run_graphs=4, eager_calls=5,
    fused_messages=6, fused_tensors=7, recv_waiting_us=8, pool=PoolMetrics(1, 2, 3, 4),
)  # fmt: skip


def test_every_prometheus_metric_is_on_its_page_with_its_labels() -> None:
    served = {}
    for family in prometheus.metrics(TASK):
        suffix = "_total" if family.type == "counter" else ""
        served[family.name + suffix] = set(family._labelnames)  # type: ignore[attr-defined]
    assert len(served) > 20
    documented = {}
    for line in (DOCS / "metrics.md").read_text().splitlines():
        if line.startswith("| `tensorwire_"):
            names, labels = line.strip("|").split("|")[:2]
            without_values = re.sub(r"\(.*?\)", "", labels)
            for name in re.findall(r"`(tensorwire_\w+)`", names):
                documented[name] = set(re.findall(r"`(\w+)`", without_values))
    assert documented == served


def completion_lines() -> dict[str, str]:
    """For each shell on the page: the line for its start-up file."""
    rows = re.findall(
        r"^\| (\w+) \| .*? \| `(.*_TENSORWIRE_COMPLETE.*)` \|$",
        (DOCS / "reference/commands.md").read_text(),
        re.MULTILINE,
    )
    return {shell: line.replace("\\|", "|") for shell, line in rows}


# Commands that print how each shell completes "tensorwire ben" after reading the page's line.
ASK = {
    "bash": "COMP_WORDS=(tensorwire ben) COMP_CWORD=1; "
    "$(complete -p tensorwire | sed 's/.*-F \\([^ ]*\\).*/\\1/') tensorwire; echo ${COMPREPLY[@]}",
    "zsh": "_describe() { print -r -- $completions_with_descriptions }; "
    "words=(tensorwire ben); CURRENT=2; $_comps[tensorwire]",
    "fish": "complete --do-complete 'tensorwire ben'",
}
BEFORE = {"zsh": "autoload -Uz compinit; compinit -u -D; "}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_pages_line_makes_a_shell_complete_commands(shell: str, tmp_path: Path) -> None:
    line = completion_lines()[shell]
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    program = tmp_path / "tensorwire"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tensorwire.cli.main "$@"\n')
    program.chmod(0o755)
    done = subprocess.run(
        [shell, "-c", f"{BEFORE.get(shell, '')}{line}\n{ASK[shell]}"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "bench" in done.stdout, done.stderr


PERFORMANCE = (DOCS / "performance.md").read_text()


def rows_of_performance() -> list[tuple[str, str, str]]:
    """For each row: the ratio, its interval (or ""), and the record."""
    return re.findall(
        r"\*\*([\d.]+)\*\*(?: \(([\d.]+ to [\d.]+)\))? \|.*\[record\]\((.*?)\)", PERFORMANCE
    )


@pytest.mark.parametrize(("ratio", "interval", "record"), rows_of_performance())
def test_a_figure_of_the_performance_page_is_its_records(
    ratio: str, interval: str, record: str
) -> None:
    document = json.loads((DOCS / record).read_text())
    intervals = document.get("intervals", {})
    shown = {
        (f"{value:.1f}", " to ".join(f"{end:.1f}" for end in intervals.get(name, ())))
        for name, value in document["ratios"].items()
    }
    assert (ratio, interval) in shown


def test_the_performance_page_has_its_figures() -> None:
    assert len(rows_of_performance()) >= 17


def test_the_performance_pages_command_shows_a_record_beside_ours(tmp_path: Path) -> None:
    (command,) = re.findall(r"^    (tensorwire report mine\.json .*)$", PERFORMANCE, re.MULTILINE)
    ours = ROOT / command.split()[-1]
    shutil.copy(ours, tmp_path / "mine.json")
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    done = subprocess.run(
        [sys.executable, "-m", "tensorwire.cli.main", *command.split()[1:]],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "mine" in done.stdout and ours.stem in done.stdout


def test_pictures_are_what_their_script_draws() -> None:
    drawn = runpy.run_path(str(DOCS / "concepts/pictures.py"))["files"]()
    assert set((DOCS / "concepts").glob("*.svg")) == set(drawn)
    for path, svg in drawn.items():
        assert path.read_text() == svg, "run: python docs/concepts/pictures.py"


def test_the_picture_of_top_shows_its_record() -> None:
    draw = runpy.run_path(str(DOCS / "pages/draw.py"))
    assert "…" not in draw["shown"]().export_text()  # a five-digit pid fits into 80 columns
    picture = (DOCS / "pages/top.svg").read_text()
    words = html.unescape(re.sub(r"<.*?>", " ", picture)).split()
    assert set(draw["shown"]().export_text().split()) <= set(words), "run: docs/pages/draw.py"
    assert "http" not in re.sub(r'xmlns="[^"]*"', "", picture)
