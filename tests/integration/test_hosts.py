"""Runs the commands of docs/hosts.md on the hosts of a lab, by stand-ins for ssh and Slurm."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from harness.shell import run_script
from tensorwire.bench.lab import HostSettings, Lab, LabSettings

ROOT = Path(__file__).parents[2]
HOSTS = 4
_COMMANDS = re.compile(r"^```bash\n(.*?)^```", re.DOTALL | re.MULTILINE)

STAND_INS = {
    "ssh": """
host, command = sys.argv[2:]  # the first is -n
os.chdir("/")
os.execvp(places[host][0], [*places[host], "bash", "-c", command])
""",
    "scontrol": """
print(*places, sep="\\n")
""",
    "srun": """
nodes, first = (int(each.partition("=")[2]) for each in sys.argv[1:3])
tasks = [
    subprocess.Popen([*place, *sys.argv[3:]], env={**os.environ, "SLURM_PROCID": str(number)})
    for number, place in enumerate([*places.values()][first : first + nodes])
]
sys.exit(max(task.wait() for task in tasks))
""",
    # The steps of a job end with its script.
    "sbatch": """
slurm = {"SLURM_JOB_NUM_NODES": str(len(places)), "SLURM_JOB_NODELIST": "host[0-3]"}
with open(sys.argv[2].partition("=")[2], "w") as log:
    script = subprocess.Popen(
        ["setsid", "bash", sys.argv[3]], env={**os.environ, **slurm}, stdout=log, stderr=log
    )
status = script.wait()
os.killpg(script.pid, signal.SIGKILL)
sys.exit(status)
""",
}


@pytest.mark.newest
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("plugin")
@pytest.mark.skipif(os.geteuid() != 0, reason="the hosts of a lab require root")
def test_every_command_works_on_four_hosts(tmp_path: Path) -> None:
    commands = "".join(_COMMANDS.findall((ROOT / "docs/hosts.md").read_text()))
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "bin").mkdir()
    (tmp_path / "page.sh").write_text(f"PATH={tmp_path}/bin:$PATH\n{commands}")
    with Lab(LabSettings.alike(HOSTS, HostSettings())) as lab:
        if not lab.has_network:
            pytest.skip(f"no lab here: {lab.notes}")
        places = json.dumps({host.name: host.command([]) for host in lab.hosts})
        for name, text in STAND_INS.items():
            file = tmp_path / "bin" / name
            file.write_text(
                f"#!{sys.executable}\nimport json, os, signal, subprocess, sys\n"
                f"places = json.loads({places!r})\n{text}"
            )
            file.chmod(0o755)
        # As a user who works on the last host.
        there = shlex.join(lab.hosts[-1].command(["bash", "-e", "page.sh"]))
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
        status, said = run_script(f"exec {there}", tmp_path, quiet, 570)
    logs = "".join(f"{each.name}:\n{each.read_text()}" for each in tmp_path.glob("*.log"))
    assert status == 0, f"{said}\n{logs}"
    assert "1 ps and 3 workers on grpc++" in said, said
    sent = re.findall(r"^loss [\d.]+; sent (\d+) bytes on grpc\+\+", said, re.MULTILINE)
    assert len(sent) == 4 and "0" not in sent[:3] and sent[3] == "0", said
