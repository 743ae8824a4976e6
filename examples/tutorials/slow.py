"""Makes links, ps and workers of a job slow, one at a time, and asks the doctor each time."""

import json
import subprocess
import time
from pathlib import Path

from tensorwire.bench.lab import HostSettings, Lab, LabSettings, LocalCluster

healthy = HostSettings(rate_bits_per_s=10e9)
slow_link = HostSettings(rate_bits_per_s=200e6)
slow_cpu = HostSettings(rate_bits_per_s=10e9, cpus=0.2)


def look(what, link="10gbit"):
    print(f"\n== {what}", flush=True)
    subprocess.run(["tensorwire", "doctor", "--seconds", "5", "--link", link], check=True)


with Lab(LabSettings.alike(3, healthy), change_cpus=True) as lab:
    hosts = {"ps": lab.hosts[:1], "worker": lab.hosts[1:]}
    with LocalCluster({"ps": 1, "worker": 2}, hosts) as cluster:
        for job, index in ("ps", 0), ("worker", 0), ("worker", 1):
            task = {"cluster": cluster.spec, "task": {"type": job, "index": index}}
            env = {"TF_CONFIG": json.dumps(task), "TENSORWIRE_METRICS": f"unix:{Path.cwd()}"}
            cluster.start(
                job, index, ["tensorwire", "run", "--protocol", "grpc++", "dense.py"], env
            )
            while job == "worker" and not Path(f"worker-{index}.began").exists():
                cluster.check()  # ends this with the log of a task that failed
                time.sleep(0.5)

        def change(*settings):  # of ps:0, worker:0 and worker:1
            for host, each in enumerate(settings):
                lab.set(host, each)

        look("all is well")
        change(slow_link, slow_link, slow_link)
        look("links of 200 Mbit/s", "200mbit")
        change(slow_cpu, healthy, healthy)
        look("the ps has a fifth of a core")
        change(healthy, slow_cpu, slow_cpu)
        look("each worker has a fifth of a core")
