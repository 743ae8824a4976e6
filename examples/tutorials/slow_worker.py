"""Runs a command as a ps and three workers, and prints what the workers print."""

import json
import sys
import time
from pathlib import Path

from tensorwire.bench.lab import LocalCluster

began = [Path(f"worker-{index}.began") for index in range(3)]
for file in began:
    file.unlink(missing_ok=True)
with LocalCluster({"ps": 1, "worker": 3}) as cluster:
    started = {}
    for job, index in ("ps", 0), ("worker", 0), ("worker", 1), ("worker", 2):
        task = {"cluster": cluster.spec, "task": {"type": job, "index": index}}
        said = cluster.directory / f"{job}-{index}.out"
        env = {"TF_CONFIG": json.dumps(task), "TENSORWIRE_METRICS": f"unix:{Path.cwd()}"}
        started[said] = cluster.start(job, index, sys.argv[1:], env, stdout=said)
        while job == "worker" and index == 0 and not began[0].exists():
            cluster.check()  # ends this with the log of a task that failed
            time.sleep(0.1)  # the others would look for its variables every 30 s
    _, *workers = started.values()
    cluster.wait(workers, timeout_s=300)
    for said in started:
        print(said.read_text(), end="")
