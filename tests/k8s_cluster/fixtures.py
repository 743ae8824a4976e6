"""A real control plane for all tests of a run, with a namespace for each test."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import Run, run_in_process
from k8s_cluster.cluster import Cluster, Lab
from local_kubernetes import (
    ControlPlane,
    NoControlPlane,
    NodeSettings,
    Pace,
    VirtualKubelet,
)


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    try:
        plane = ControlPlane(Pace(evict_after_s=2))
    except NoControlPlane as error:
        pytest.skip(str(error))
    with plane:
        yield plane


@pytest.fixture
def cluster(
    control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    with Cluster(control_plane, tmp_path) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        yield cluster


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `tensorwire k8s` in this process."""
    return run_in_process(capsys, "k8s")


@pytest.fixture(scope="session")
def kubectl() -> str:
    """The path of kubectl; skips the test if it is missing."""
    found = shutil.which("kubectl")
    if found is None:
        pytest.skip("there is no kubectl")
    return found


@pytest.fixture
def lab(cluster: Cluster) -> Lab:
    """Nodes that run pods: ``lab(2, pods=3)``. The only available image is `image`."""
    if os.geteuid() != 0:
        pytest.skip("pods in the lab require root")

    @contextlib.contextmanager
    def nodes(count: int, pods: int = 3, **options: Any) -> Iterator[VirtualKubelet]:
        settings = [NodeSettings(f"{cluster.namespace}-{i}", pods=pods) for i in range(count)]
        images = {"images": ["image"], **options}
        try:
            kubelet = VirtualKubelet(cluster.control_plane, settings, **images)
            kubelet.__enter__()
        except NoControlPlane as error:
            pytest.skip(str(error))
        with contextlib.ExitStack() as held:
            held.push(kubelet.__exit__)
            yield kubelet

    return nodes


@pytest.fixture
def claim(cluster: Cluster, tmp_path: Path) -> Path:
    """The folder behind the PersistentVolumeClaim `data`, which every pod may write to."""
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(0o777)
    name = f"{cluster.namespace}-data"
    size = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"]}
    reference = {"namespace": cluster.namespace, "name": "data"}
    place = {"hostPath": {"path": str(folder)}, "storageClassName": "", "claimRef": reference}
    cluster.make("/api/v1/persistentvolumes", "PersistentVolume", name, spec={**size, **place})
    wanted = {"resources": {"requests": {"storage": "1Gi"}}, "accessModes": ["ReadWriteMany"]}
    cluster.make(
        f"/api/v1/namespaces/{cluster.namespace}/persistentvolumeclaims",
        "PersistentVolumeClaim",
        "data",
        spec={**wanted, "storageClassName": "", "volumeName": name},
    )
    return folder
