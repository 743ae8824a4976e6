"""The keeper with a real API server, and with the rights from the job's manifests."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import Run
from k8s_cluster.cluster import BareNodes, Cluster, bare_nodes, eventually
from tensorwire.k8s.keeper import list_jobs, wait
from tensorwire.k8s.layout import COLOCATED, PUBLISHED

pytestmark = [pytest.mark.newest, pytest.mark.timeout(300, func_only=True)]

JOB = (
    *("--name", "flights", "--image", "registry/image:1", "--script", "/app/train.py"),
    *("--workers", "4", "--ps", "2"),
)


@pytest.fixture
def nodes(cluster: Cluster) -> Iterator[BareNodes]:
    with bare_nodes(cluster, 2) as nodes:
        yield nodes


def account_of(cluster: Cluster, folder: Path, name: str = "flights") -> Path:
    """The files of a service account, as in a pod."""
    (folder / "ca.crt").write_bytes(cluster.control_plane.certificate.read_bytes())
    answer = cluster.api.create(f"{cluster.path('serviceaccounts', name)}/token", {"spec": {}})
    (folder / "token").write_text(answer["status"]["token"])
    return folder


def keeper(cluster: Cluster, account: Path, jobs: int = 2) -> threading.Thread:
    arguments = (cluster.control_plane.server, cluster.namespace, "flights", jobs)
    options = {"account": account, "interval_s": 0.05}
    thread = threading.Thread(target=wait, args=arguments, kwargs=options, daemon=True)
    thread.start()
    return thread


def test_it_asks_the_api_server_and_ends_with_the_job(
    cluster: Cluster, nodes: BareNodes, run: Run, tmp_path: Path
) -> None:
    assert run("submit", *JOB).status == 0
    nodes.wait_placed(6)
    thread = keeper(cluster, account_of(cluster, tmp_path))
    for member in (0, 1):
        nodes.end_task(f"flights-worker-0-{member}-", 0, "Completed")
    nodes.wait_ended("flights-worker-0", "Complete")
    thread.join(0.5)
    assert thread.is_alive()
    nodes.end_workers()
    thread.join(30)
    assert not thread.is_alive()


def test_its_rights_are_to_list_jobs_and_no_more(
    cluster: Cluster, run: Run, tmp_path: Path
) -> None:
    assert run("submit", *JOB).status == 0
    account = account_of(cluster, tmp_path)
    found = list_jobs(cluster.control_plane.server, cluster.namespace, "flights", account)
    assert {each["metadata"]["name"] for each in found} == {"flights-worker-0", "flights-worker-1"}
    cluster.control_plane.kubeconfig(
        cluster.kubeconfig, (account / "token").read_text(), cluster.namespace
    )
    assert "you lack a permission" in run("status", "flights").err


def test_it_goes_on_while_it_may_not_see_the_job_and_says_so_once(
    cluster: Cluster, nodes: BareNodes, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.account("nobody")
    account = account_of(cluster, tmp_path, "nobody")
    assert run("submit", *JOB, "--retries", "0").status == 0
    nodes.wait_placed(6)
    thread = keeper(cluster, account)
    nodes.end_task("flights-worker-0-0-", 1)
    nodes.wait_ended("flights-worker-0", "Failed")
    time.sleep(0.5)
    assert thread.is_alive()
    # A renewed token is read again.
    account_of(cluster, tmp_path, "flights")
    thread.join(30)
    assert not thread.is_alive()
    assert capsys.readouterr().err.count("must be allowed to list jobs") == 1


def test_it_goes_on_while_the_api_server_is_away(
    cluster: Cluster, nodes: BareNodes, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("submit", *JOB).status == 0
    nodes.wait_placed(6)
    account = account_of(cluster, tmp_path)
    nodes.end_workers()
    cluster.control_plane.stop("kube-apiserver")
    try:
        thread = keeper(cluster, account)
        thread.join(1)
        assert thread.is_alive()
    finally:
        cluster.control_plane.start("kube-apiserver")
        cluster.control_plane.wait_ready()
    thread.join(60)
    assert not thread.is_alive()
    # A starting API server refuses requests until it has read the roles. Each reason is printed
    # once, not at each attempt.
    problems = [line for line in capsys.readouterr().err.splitlines() if "trying again" in line]
    assert "refused" in problems[0]
    assert len(problems) <= 4 and all(a != b for a, b in itertools.pairwise(problems)), problems


@contextlib.contextmanager
def few_requests_at_once(cluster: Cluster) -> Iterator[None]:
    """The API server answers one request of the namespace's accounts at a time, others with 429."""
    path = "/apis/flowcontrol.apiserver.k8s.io/v1"
    limited = {"nominalConcurrencyShares": 1, "limitResponse": {"type": "Reject"}}
    accounts = {"name": "*", "namespace": cluster.namespace}
    of_all = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"]}
    rule = {
        "subjects": [{"kind": "ServiceAccount", "serviceAccount": accounts}],
        "resourceRules": [{**of_all, "clusterScope": True}],
    }
    level = {"priorityLevelConfiguration": {"name": cluster.namespace}, "matchingPrecedence": 2}
    objects: dict[str, tuple[str, dict[str, object]]] = {
        "prioritylevelconfigurations": (
            "PriorityLevelConfiguration",
            {"type": "Limited", "limited": limited},
        ),
        "flowschemas": ("FlowSchema", {**level, "rules": [rule]}),
    }
    with contextlib.ExitStack() as held:
        for plural, (kind, spec) in objects.items():
            cluster.make(f"{path}/{plural}", kind, cluster.namespace, spec=spec)
            held.callback(cluster.api.delete, f"{path}/{plural}/{cluster.namespace}")
        yield


def test_200_workers_live_with_the_limits_of_the_api_server(
    cluster: Cluster, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Forty keepers send a hundred times the normal request rate to a server with a low limit."""
    case = next(case for case in PUBLISHED if case.workers == 200)
    job = ("--case", case.name, "--image", "registry/image:1", "--script", "/app/train.py")
    with bare_nodes(cluster, case.ps) as nodes:
        assert run("submit", "--name", "flights", *job, "--layout", COLOCATED).status == 0
        nodes.wait_placed(case.workers + case.ps)
        nodes.run_all()
        account = account_of(cluster, tmp_path)
        server = cluster.control_plane.server
        expected = len(list_jobs(server, cluster.namespace, "flights", account))
        with few_requests_at_once(cluster):
            threads = [keeper(cluster, account, expected) for _ in range(case.ps)]

            said = ""

            def too_many() -> bool:
                nonlocal said
                said += capsys.readouterr().err
                return "HTTP Error 429" in said

            eventually(too_many)
            shown = run("status", "flights")
            assert shown.status == 0, shown
            assert f"worker:{case.workers - 1} " in shown.out
            nodes.end_workers()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive()
        assert "succeeded" in run("status", "flights").out
        assert run("delete", "flights").status == 0
    assert cluster.is_empty
