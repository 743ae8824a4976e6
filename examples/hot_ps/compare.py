"""One of five ps carries most of the load; shows how to find this, and the effect of `--placement
balanced`.

    python examples/hot_ps/compare.py                  # needs root for the links, see docs/lab.md
    python examples/hot_ps/compare.py --rate 1gbit --report hot_ps.html --json hot_ps.json

Trains train.py, unchanged, with 5 ps and 2 workers: first with round robin placement, then with
balanced placement. Each ps has its own limited link. The links of the two workers are as fast as
the machine, because the two represent the many workers of a job. After the measurement, `tensorwire
top` and `tensorwire doctor` observe the running job.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tensorwire.bench.frame.record import Machine
from tensorwire.bench.lab import HostSettings, Lab, LabSettings, LocalCluster
from tensorwire.bench.lab.settings import parse
from tensorwire.errors import TensorwireError
from tensorwire.report import charts, page, terminal
from tensorwire.report.section import Bar, Bars, Report, Section, Table

PS, WORKERS, STEPS, DEADLINE_S = 5, 2, 200, 180
SCRIPT = Path(__file__).with_name("train.py")
TENSORWIRE = [sys.executable, "-m", "tensorwire.cli.main"]


@dataclass
class Outcome:
    """The results of one placement."""

    steps_per_s: float
    """Steps of both workers together."""
    bytes_per_ps: list[int]
    """Bytes between each ps and the workers, over STEPS steps."""
    top: list[str]
    """Imbalances that `tensorwire top` reports."""
    doctor: list[str]
    """The title and the change of each finding of `tensorwire doctor`."""

    @property
    def share(self) -> float:
        return max(self.bytes_per_ps) / sum(self.bytes_per_ps)

    @property
    def largest_over_mean(self) -> float:
        return self.share * len(self.bytes_per_ps)


def train(placement: str, lab: Lab) -> Outcome:
    hosts = {"ps": lab.hosts[:PS], "worker": lab.hosts[PS:]}
    with LocalCluster({"ps": PS, "worker": WORKERS}, hosts) as cluster:
        for index in range(PS):
            start(cluster, "ps", index, placement, STEPS)
        told = [start(cluster, "worker", i, placement, STEPS) for i in range(WORKERS)]
        reports = [first_report(output, cluster) for output in told]
        moved = [sum(each) for each in zip(*(r["bytes_per_ps"] for r in reports), strict=True)]
        return Outcome(
            steps_per_s=sum(report["steps_per_s"] for report in reports) / WORKERS,
            bytes_per_ps=moved,
            top=top_says(cluster),
            doctor=doctor_says(cluster),
        )


def start(cluster: LocalCluster, job: str, index: int, placement: str, report_every: int) -> Path:
    """Starts a task that trains until it is ended; returns the path of its output."""
    task = {"cluster": cluster.spec, "task": {"type": job, "index": index}}
    env = {
        "TF_CONFIG": json.dumps(task),
        "HOT_PS_REPORT_EVERY": str(report_every),
        "HOT_PS_STEPS": str(10**9),
        "TENSORWIRE_METRICS": f"unix:{metrics_of(cluster, job, index)}",
    }
    output = cluster.directory / f"{job}-{index}-{placement}.out"
    command = [*TENSORWIRE, "run", "--placement", placement, str(SCRIPT)]
    cluster.start(job, index, command, env, stdout=output)
    return output


def first_report(output: Path, cluster: LocalCluster) -> dict:
    def told() -> bool:
        return output.read_text().endswith("\n")

    wait(cluster, f"a worker reported nothing within {DEADLINE_S} s", told)
    return json.loads(output.read_text().splitlines()[0])


def metrics_of(cluster: LocalCluster, job: str, index: int) -> Path:
    return cluster.directory / f"{job}-{index}.sock"


def endpoints(cluster: LocalCluster) -> str:
    sockets = [
        metrics_of(cluster, job, index)
        for job, addresses in cluster.spec.items()
        for index in range(len(addresses))
    ]
    for socket in sockets:
        wait(cluster, f"no task serves its metrics at {socket}", socket.exists)
    return ",".join(f"unix:{socket}" for socket in sockets)


def wait(cluster: LocalCluster, otherwise: str, is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_done():
        cluster.check()
        if time.monotonic() > deadline:
            raise TensorwireError(otherwise)
        time.sleep(0.1)


def top_says(cluster: LocalCluster) -> list[str]:
    look = ["top", "--output", "json", "--interval", "2", "--endpoints", endpoints(cluster)]
    seen = json.loads(subprocess.check_output([*TENSORWIRE, *look], timeout=DEADLINE_S))
    return [
        f"{found['task']} moves {found['share']:.0%} of the bytes of its job; "
        f"{found['hot']['share']:.0%} of it is {found['hot']['name']}."
        for found in seen["imbalances"]
        if found["what"] == "bytes"
    ]


def doctor_says(cluster: LocalCluster) -> list[str]:
    kept = cluster.directory / "look.json"
    look = ["doctor", "--seconds", "3", "--endpoints", endpoints(cluster), "--json", str(kept)]
    subprocess.check_output([*TENSORWIRE, *look], timeout=DEADLINE_S)
    findings = json.loads(kept.read_text())["findings"]
    return [f"{found['title']}. {found['change']}" for found in findings]


def section(found: dict[str, Outcome], notes: list[str]) -> Section:
    rows, bars = [], []
    for placement, seen in found.items():
        metrics = [f"{seen.steps_per_s:.1f}", f"{seen.share:.0%}", f"{seen.largest_over_mean:.2f}"]
        rows.append([placement, *metrics])
        bars += [
            Bar(f"{placement}, ps:{i}", each / 1e6, placement)
            for i, each in enumerate(seen.bytes_per_ps)
        ]
        for who, said in (("top", seen.top), ("doctor", seen.doctor)):
            notes = [*notes, f"{placement}: {who} says: {' '.join(said) or 'nothing.'}"]
    before, after = (seen.steps_per_s for seen in found.values())
    return Section(
        title="One hot ps of five",
        headline=f"balanced: {after / before:.2f} times the steps a second of round robin.",
        charts=[Bars(f"Bytes of each ps in {STEPS} steps", "MB", bars)],
        tables=[
            Table(
                f"{PS} ps, {WORKERS} workers, one large embedding",
                ["placement", "steps/s", "bytes of the busiest ps", "largest/mean"],
                [rows],
            )
        ],
        notes=notes,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", default="250mbit", help="rate of each ps's link (%(default)s)")
    parser.add_argument("--report", type=Path, help="write a page with plots")
    parser.add_argument("--json", type=Path, help="write the results")
    options = parser.parse_args()
    if options.report:
        charts.check_installed()  # before the work, not after it
    link = parse(f"hosts=2,rate={options.rate}").hosts[0]
    with Lab(LabSettings((link,) * PS + (HostSettings(),) * WORKERS)) as lab:
        found = {placement: train(placement, lab) for placement in ("round_robin", "balanced")}
        notes = [f"each ps has a link of {options.rate}"] if lab.has_network else list(lab.notes)
    shown = section(found, notes)
    terminal.show([shown])
    if options.report:
        report = Report("examples/hot_ps", ["grpc++"], [shown], [shown.headline])
        page.write(options.report, report)
    if options.json:
        document = {
            "host": dataclasses.asdict(Machine.here()),
            "notes": notes,
            "placements": {name: dataclasses.asdict(seen) for name, seen in found.items()},
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except TensorwireError as error:
        sys.exit(f"compare: {error}")
