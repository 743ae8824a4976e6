"""Starts a training script once per task, as a cluster manager would, and collects its results."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import tally
from tensorwire.bench.lab import LocalCluster

HERE = Path(__file__).parent
TIMEOUT_S = 240.0
TENSORWIRE = [sys.executable, "-m", "tensorwire.cli.main"]


@dataclass(frozen=True)
class Training:
    """The output of one training: the tasks' reports and logs."""

    reports: dict[str, dict[str, Any]]
    logs: dict[str, str]

    def values(self, task: str) -> Any:
        return self.reports[task]["values"]

    def used_the_data_plane(self, *tasks: str) -> bool:
        """Whether each of the named tasks (or of all that reported) has sent and received on
        grpc++.
        """
        stats = [self.reports[task]["stats"] for task in tasks or self.reports]
        return all(s is not None and s["tx_bytes"] > 0 and s["rx_bytes"] > 0 for s in stats)


def train(
    script: Path,
    jobs: Mapping[str, int],
    directory: Path,
    protocol: str | None,
    arguments: Sequence[str] = (),
    prefix: Sequence[str] = (sys.executable,),
    env: Mapping[str, str] | None = None,
    outside: Sequence[str] = (),
    as_is: bool = False,
) -> Training:
    """Runs `script` for every task of `jobs`, and ends the ps when all others have succeeded.

    Args:
        protocol: passed to the script as --protocol; None: not passed.
        prefix: the command that runs the script: Python, or `tensorwire run …`.
        outside: jobs that are not part of the cluster, such as an evaluator.
        as_is: the script takes no arguments and reports nothing.
    """
    directory.mkdir(parents=True, exist_ok=True)
    said = ["--protocol", protocol] if protocol else []
    told = [] if as_is else [*said, "--directory", str(directory), *arguments]
    argv = [*prefix, str(script), *told]
    with LocalCluster(jobs) as cluster:
        inside = {job: hosts for job, hosts in cluster.spec.items() if job not in outside}
        tasks = []
        for job, hosts in cluster.spec.items():
            for index in range(len(hosts)):
                task = {"type": job, "index": index}
                variables = {
                    "TF_CONFIG": json.dumps({"cluster": inside, "task": task}),
                    "TF_ENABLE_ONEDNN_OPTS": "0",
                    "CUDA_VISIBLE_DEVICES": "-1",
                    **(env or {}),
                }
                tasks.append(cluster.start(job, index, argv, variables, cwd=directory))
        last = [t for t in tasks if t.job in ("chief", "evaluator", "coordinator")]
        enders = last or [t for t in tasks if t.job == "worker"]
        cluster.wait(enders, TIMEOUT_S)
        logs = {task.name: task.log.read_text(errors="replace") for task in tasks}
    reports = {p.stem: json.loads(p.read_text()) for p in sorted(directory.glob("*.json"))}
    for report in reports.values():
        tally.count_bytes(report.get("stats"))
    return Training(reports, logs)
