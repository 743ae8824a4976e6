"""Runs a command as three ps and a worker, on lab hosts; each ps has a link of 250 Mbit/s."""

import json
import sys
from pathlib import Path

from tensorwire.bench.lab import HostSettings, Lab, LabSettings, LocalCluster

slow, fast = HostSettings(rate_bits_per_s=250e6), HostSettings()
with Lab(LabSettings((slow, slow, slow, fast))) as lab:
    hosts = {"ps": lab.hosts[:3], "worker": lab.hosts[3:]}
    with LocalCluster({"ps": 3, "worker": 1}, hosts) as cluster:
        for job, index in ("ps", 0), ("ps", 1), ("ps", 2), ("worker", 0):
            task = {"cluster": cluster.spec, "task": {"type": job, "index": index}}
            said = cluster.directory / f"{job}-{index}.out"
            env = {"TF_CONFIG": json.dumps(task), "TENSORWIRE_METRICS": f"unix:{Path.cwd()}"}
            worker = cluster.start(job, index, sys.argv[1:], env, stdout=said)
        cluster.wait([worker], timeout_s=300)
        print(said.read_text(), end="")
