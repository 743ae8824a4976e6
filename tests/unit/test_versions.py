"""The table of TensorFlow versions in docs/versions.md equals the record."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]


def test_the_page_shows_the_versions_that_were_tested_and_how() -> None:
    record = json.loads((ROOT / "benchmarks/results/versions.json").read_text())
    recorded = [
        [
            each["tensorflow"],
            each["python"],
            f"{each['compile_s']} s",
            str(each["passed"]),
            str(each["skipped"]),
            str(each["failed"]),
            f"{each['tests_s']} s",
        ]
        for each in record["results"]
    ]
    shown = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (ROOT / "docs/versions.md").read_text().splitlines()
        if re.match(r"\| 2\.\d+\.\d+ ", line)
    ]
    assert shown == recorded
    assert {each["state"] for each in record["results"]} == {"passed"}
