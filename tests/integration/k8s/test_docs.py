"""Runs the commands of pages unchanged, from an empty cluster to a finished job."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.shell import run_script
from local_kubernetes import ControlPlane, NodeSettings, VirtualKubelet

pytestmark = [
    pytest.mark.newest,
    pytest.mark.timeout(600, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="pods in the lab require root"),
]

ROOT = Path(__file__).parents[3]
_COMMANDS = re.compile(r"^```bash\n(.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """What its commands print, and the namespace that they make."""

    name: str
    namespace: str
    successes: int
    """Lines that say that the job has succeeded."""
    says: str


PAGES = [
    Page("kubernetes", "training", 3, "9 unchanged"),  # twice followed, once by status
    Page("from-tfjob", "team", 2, "dist"),
]


@pytest.mark.usefixtures("kubectl")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_lead_from_an_empty_cluster_to_a_finished_job(
    control_plane: ControlPlane, tmp_path: Path, page: Page
) -> None:
    commands = "".join(_COMMANDS.findall((ROOT / f"docs/{page.name}.md").read_text()))
    (image,) = set(re.findall(r"--image (\S+)", commands))
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    variables = {
        "KUBECONFIG": str(control_plane.kubeconfig(tmp_path / "kubeconfig")),
        "HOME": str(tmp_path),  # kubectl's cache
    }
    nodes = [NodeSettings("worker-node", pods=6)]
    with VirtualKubelet(control_plane, nodes, images=[image]) as kubelet:
        status, said = run_script(commands, tmp_path, variables, 400)
        assert status == 0, f"{said}\n{kubelet.tails()}"
        assert len(re.findall(r"\w+: succeeded", said)) == page.successes, said
        assert len(re.findall(r"^worker:[01]: loss [\d.]+; sent \d+ bytes", said, re.M)) == 2
        assert page.says in said
    pods = control_plane.api().get(f"/api/v1/namespaces/{page.namespace}/pods")["items"]
    assert not pods
    control_plane.api().delete(f"/api/v1/namespaces/{page.namespace}")
