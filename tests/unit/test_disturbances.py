"""The tables of benchmarks/README.md."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness import markdown
from harness.disturbance_tables import tables
from harness.disturbances import ALL, Survival
from tensorwire.bench.frame.variants import PROTOCOLS

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]


def survivals() -> list[Survival]:
    record = json.loads((ROOT / "benchmarks/results/disturbances-2.21.0.json").read_text())
    return [Survival(**each) for each in record["results"]]


def test_the_tables_of_the_documents_are_those_of_the_record() -> None:
    document = (ROOT / "benchmarks/README.md").read_text()
    for table in tables(survivals(), PROTOCOLS):
        assert markdown.text(table) in document, (
            "take them from `benchmarks/disturbances --show benchmarks/results/…`"
        )


def test_the_record_has_every_disturbance_on_each_protocol() -> None:
    found = [(each.disturbance, each.protocol) for each in survivals()]
    assert found == [(each.name, protocol) for each in ALL for protocol in PROTOCOLS]


def test_an_error_is_told_without_the_names_and_addresses_of_whom_it_met() -> None:
    lost = "grpc++: /job:ps/replica:0/task:0 at 10.0.0.5:22222: /job:ps/replica:0/task:0 "
    errors = {
        f"{lost}(10.0.0.5:22222) has been silent for 30 s": "has been silent for 30 s",
        ':UNKNOWN:Error {grpc_status:14, grpc_message:"Socket closed"}': "Socket closed",
        "recvmsg:Connection reset by peer": "Connection reset by peer",
        "Step 112666215158645868 cancelled.": "Step … cancelled.",
    }
    for error, words in errors.items():
        (table,) = tables([Survival("it", "grpc++", 1.0, None, 3, [error])], ["grpc++"])
        assert table.rows == [["it", f"`{words}`; the session starts anew", "none", "1.0", "3"]]
