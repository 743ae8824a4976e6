"""One ps of five carries the load, and what `--placement balanced` makes of it.

    python examples/hot_ps/compare.py                       # needs root for the links, see docs/lab.md
    python examples/hot_ps/compare.py --rate 1gbit --page hot_ps.html

Trains train.py, unchanged, with 5 ps and 2 workers as `tensorwire run` places it: one after the
other, then balanced. Each ps has a link of its own; those of the two workers are as fast as the
machine, because they stand for the many that a job has.
"""

import argparse
import json
import sys
from pathlib import Path

from tensorwire.lab import HostSettings, Lab, LabSettings, LocalCluster
from tensorwire.lab.settings import parse
from tensorwire.report import page, terminal
from tensorwire.report.blocks import Bar, Bars, Report, Section, Table

PS, WORKERS, STEPS, DEADLINE_S = 5, 2, 200, 180
SCRIPT = Path(__file__).with_name("train.py")


def train(placement: str, lab: Lab) -> tuple[float, list[int]]:
    """Steps a second of all workers, and the bytes that each ps moved."""
    hosts = {"ps": lab.hosts[:PS], "worker": lab.hosts[PS:]}
    with LocalCluster({"ps": PS, "worker": WORKERS}, hosts) as cluster:
        tensorwire = [sys.executable, "-m", "tensorwire.cli.main"]
        command = [*tensorwire, "run", "--placement", placement, str(SCRIPT)]
        workers = {}
        for job, addresses in cluster.spec.items():
            for index in range(len(addresses)):
                task = {"cluster": cluster.spec, "task": {"type": job, "index": index}}
                env = {"TF_CONFIG": json.dumps(task), "HOT_PS_STEPS": str(STEPS)}
                output = cluster.directory / f"{job}-{index}.out"
                started = cluster.start(job, index, command, env, stdout=output)
                if job == "worker":
                    workers[started] = output
        cluster.wait(workers, DEADLINE_S)
        reports = [json.loads(output.read_text()) for output in workers.values()]
    moved = [sum(each) for each in zip(*(r["bytes_per_ps"] for r in reports), strict=True)]
    return sum(r["steps_per_s"] for r in reports) / WORKERS, moved


def section(found: dict[str, tuple[float, list[int]]], notes: list[str]) -> Section:
    rows, bars = [], []
    for placement, (steps_per_s, moved) in found.items():
        largest = max(moved)
        share, uneven = largest / sum(moved), largest * PS / sum(moved)
        rows.append([placement, f"{steps_per_s:.1f}", f"{share:.0%}", f"{uneven:.2f}"])
        bars += [Bar(f"{placement}, ps:{i}", b / 1e6, placement) for i, b in enumerate(moved)]
    before, after = (steps_per_s for steps_per_s, _ in found.values())
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
    parser.add_argument("--rate", default="250mbit", help="of each ps's link (%(default)s)")
    parser.add_argument("--page", type=Path, help="write a page with plots")
    options = parser.parse_args()
    link = parse(f"hosts=2,rate={options.rate}").hosts[0]
    with Lab(LabSettings((link,) * PS + (HostSettings(),) * WORKERS)) as lab:
        found = {placement: train(placement, lab) for placement in ("round_robin", "balanced")}
        notes = [f"each ps has a link of {options.rate}"] if lab.has_network else lab.notes
    shown = section(found, notes)
    terminal.show([shown])
    if options.page:
        report = Report("examples/hot_ps", ["grpc++"], [shown], [shown.headline])
        page.write(options.page, report)


if __name__ == "__main__":
    main()
