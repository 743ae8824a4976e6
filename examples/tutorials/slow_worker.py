"""Runs a command as a ps and three workers, and prints how long they trained."""

import json
import sys
import time
from pathlib import Path

from tensorwire.bench.lab import LocalCluster

began = [Path(f"worker-{index}.began") for index in range(3)]
for file in began:
    file.unlink(missing_ok=True)
with LocalCluster({"ps": 1, "worker": 3}) as cluster:

    def wait_for(*files):
        while not all(file.exists() for file in files):
            cluster.check()  # ends this with the log of a task that failed
            time.sleep(0.1)

    started = {}
    for job, index in ("ps", 0), ("worker", 0), ("worker", 1), ("worker", 2):
        task = {"cluster": cluster.spec, "task": {"type": job, "index": index}}
        said = cluster.directory / f"{job}-{index}.out"
        env = {"TF_CONFIG": json.dumps(task), "TENSORWIRE_METRICS": f"unix:{Path.cwd()}"}
        started[said] = cluster.start(job, index, sys.argv[1:], env, stdout=said)
        if (job, index) == ("worker", 0):
            wait_for(began[0])  # the others would look for its variables every 30 s
    wait_for(*began)
    at = time.monotonic()
    _, *workers = started.values()
    cluster.wait(workers, timeout_s=300)
    print(f"the epoch took {time.monotonic() - at:.0f} s")
    for said in started:
        print(said.read_text(), end="")
