"""Figures, limits and defaults in the documents are those of the code and of the records."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tensorwire.doctor import evidence
from tensorwire.doctor.rules import compute, network, placement, workers
from tensorwire.k8s.job import Job, Resources
from tensorwire.k8s.layout import PUBLISHED

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
DEMO = "demo-2.21.0.json"


def record(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((ROOT / "benchmarks/results" / name).read_text())
    return document


def demo_sentence() -> str:
    document = record(DEMO)
    low, high = document["intervals"]["grpc++/grpc"]
    grpc, grpcpp = (f"{result['auc']:.4f}" for result in document["results"][:2])
    return (
        f"grpc++ trains {document['ratios']['grpc++/grpc']:.2f} times ({low:.2f} to {high:.2f}) "
        f"as fast as grpc, to an AUC of {grpcpp} against {grpc}."
    )


def steps(name: str, which: tuple[int, ...]) -> list[str]:
    results = record(name)["results"]
    return [f"{results[each]['steps_per_s']:.0f}" for each in which]


def percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def requests(workers: int, ps: int) -> str:
    """What the pods of a job request by default, keepers included."""
    default = {each.name: each.default for each in fields(Job)}
    pod = (ROOT / "src/tensorwire/k8s/templates/pod.yaml.j2").read_text()
    (keeper,) = set(re.findall(r"requests: \{cpu: (\w+), memory: 64Mi\}", pod))
    cpu = workers * Resources(default["worker_cpu"], "1Gi").cores
    cpu += ps * (Resources(default["ps_cpu"], "1Gi").cores + Resources(keeper, "1Gi").cores)
    memory = workers * float(default["worker_memory"].removesuffix("Gi"))
    memory += ps * (int(default["ps_memory"].removesuffix("Gi")) + 64 / 1024)
    return f"{cpu:.3g} CPU and {memory:.3g} GiB"


LINKS = ("train-ctr", "train-ctr-1gbit", "train-ctr-100mbit")


def ratios_of_rewrites(title: str, of: str, names: tuple[str, ...] = LINKS) -> str:
    """A row of the rewrites' page: a ratio over loopback and over slower links."""
    found = [record(f"{name}-2.21.0.json")["ratios"][of] for name in names]
    return " | ".join([f"| {title}", *(f"{each:.1f}" for each in found)]) + " |"


SENTENCES = [
    ("docs/concepts/rewrites.md", ratios_of_rewrites("all exact", "grpc++ exact/grpc")),
    (
        "docs/concepts/rewrites.md",
        ratios_of_rewrites(
            "all exact and bfloat16",
            "grpc++ exact bfloat16/grpc",
            ("train-ctr-bfloat16", *LINKS[1:]),
        ),
    ),
    ("README.md", demo_sentence()),
    (
        "README.md",
        "on real flights {} with gRPC, {} with grpc++, {} ".format(*steps(DEMO, (0, 1, 2))),
    ),
    ("docs/doctor.md", f"at least {placement.UNEVEN:g} times the mean bytes"),
    ("docs/doctor.md", f"exceeds {placement._TOO_BIG:g} times a fair share"),
    ("docs/doctor.md", f"at least {network._MANY} tensors below {network._SMALL_BYTES / 1e3:g} KB"),
    ("docs/doctor.md", f"link is at least {percent(network._FULL)} full"),
    ("docs/doctor.md", f"less than {percent(network._FAR_BELOW)} of what the link"),
    ("docs/doctor.md", f"the ps use at least {percent(compute.BUSY)} of their cores"),
    ("docs/doctor.md", f"computation takes at least {percent(compute._COMPUTES)} of a step"),
    ("docs/doctor.md", f"the input takes at least {percent(workers._WAITS_FOR_INPUT)} of a step"),
    ("docs/doctor.md", f"less than {workers._SLOW:g} times the steps of the others"),
    ("docs/doctor.md", f"would save less than {percent(evidence.SMALLEST_COST)} of a step"),
    ("docs/metrics.md", f"at\nleast {placement.UNEVEN:g} times the mean"),
    ("docs/kubernetes.md", f"The job above requests {requests(2, 1)}"),
    ("docs/kubernetes.md", f"ten workers and a ps on one node request {requests(10, 1)}"),
    *(("docs/kubernetes.md", f"| {c.name} | {c.workers} | {c.ps} | {c.ps} |") for c in PUBLISHED),
]

FROM_NATIVE = [
    ("docs/settings.md", "gRPC port + 20000", "kDataPortShift = 20000;"),
    ("docs/settings.md", "between 32768 and 60999", "kEphemeralLast = 60999;"),
    ("docs/concepts/shared-memory.md", "256 KiB and more", "kLeastBytes = 256u << 10;"),
    ("docs/faults.md", "`TENSORWIRE_PEER_TIMEOUT_S` (30)", "silent_timeout_ms = 30000;"),
    ("docs/metrics.md", "The first 4096 have an entry", "kMostTensors = 4096;"),
    ("SECURITY.md", "may hold 1 GiB together", "unanswered_bytes = 1ull << 30;"),
    ("SECURITY.md", "every 128 GiB", "kBytesPerKey = uint64_t{128} << 30;"),
    ("ARCHITECTURE.md", "4096 frames", "kMostFrames = 4096;"),
    ("ARCHITECTURE.md", "256 MB", "kMostBytes = 256u << 20;"),
]


@pytest.mark.parametrize(("page", "words"), SENTENCES)
def test_a_sentence_has_the_figure_of_the_code_or_the_record(page: str, words: str) -> None:
    assert " ".join(words.split()) in " ".join((ROOT / page).read_text().split())


@pytest.mark.parametrize(("page", "words", "code"), FROM_NATIVE)
def test_a_limit_is_that_of_the_native_code(page: str, words: str, code: str) -> None:
    sources = [*ROOT.glob("native/*/**/*.h"), *ROOT.glob("native/*/**/*.cc")]
    assert words in " ".join((ROOT / page).read_text().split())
    assert any(code in source.read_text() for source in sources), code


def test_the_planners_errors_are_those_of_its_record() -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/plan", "compare", "benchmarks/results/plan-2.21.0.json"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    last = done.stdout.splitlines()[-1]
    found = re.fullmatch(r"median error ([\d.]+)%, largest (\d+)%; (.*) within 20 %", last)
    assert found, last
    median, largest, within = found.groups()
    page = " ".join((ROOT / "docs/planner.md").read_text().split())
    assert f"a median error of {median} % and a largest of {largest} %" in page
    table = (ROOT / "benchmarks/README.md").read_text()
    assert f"| shipped | {median} % | {largest} % | {within} |" in table
