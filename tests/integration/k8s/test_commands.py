"""submit, status, logs, label and delete: the command line with a real API server.

Nodes are bare: a test sets the status of each pod. All else is real Kubernetes.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from command_line import Run, one_line
from k8s_cluster.cluster import BareNodes, Cluster, bare_nodes, eventually
from local_kubernetes.api import Object
from tensorwire.k8s import watch

pytestmark = [pytest.mark.newest, pytest.mark.timeout(300, func_only=True)]

JOB = (
    *("--name", "flights", "--image", "registry/image:1", "--script", "/app/train.py"),
    *("--workers", "4", "--ps", "2"),
)
FOLLOW = ("--follow", "--interval", "0.2")
WORKER_2 = "flights-worker-1-0-"


@pytest.fixture
def nodes(cluster: Cluster) -> Iterator[BareNodes]:
    with bare_nodes(cluster, 2) as nodes:
        yield nodes


Script = Callable[..., None]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Runs the next of the given acts each time before the client observes the job."""

    def of(*acts: Callable[[], None]) -> None:
        left, observe = list(acts), watch.observe

        def observe_after_act(*arguments: object) -> object:
            if left:
                left.pop(0)()
            return observe(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(watch, "observe", observe_after_act)

    return of


def test_a_job_is_submitted_followed_to_its_end_and_removed(
    cluster: Cluster, nodes: BareNodes, run: Run, script: Script
) -> None:
    script(
        lambda: nodes.wait_placed(6),
        lambda: nodes.run_all(but="worker-1"),
        nodes.run_all,
        nodes.end_workers,
    )
    done = run("submit", *JOB, *FOLLOW, "--clean-up")
    assert done.status == 0, done
    assert done.out.splitlines() == [
        f"flights in namespace {cluster.namespace}: 11 created",
        "flights: of 6 tasks 6 starting",
        "flights: of 6 tasks 4 ready, 2 starting",
        "flights: of 6 tasks 6 ready",
        "flights: succeeded",
        "removed 11 objects",
    ]
    assert cluster.is_empty


@pytest.mark.parametrize("format", ["plain", "jobset"])
def test_kubectl_takes_the_manifests(
    cluster: Cluster, run: Run, kubectl: str, tmp_path: Path, format: str
) -> None:
    rendered = run("render", *JOB, "--format", format)
    # In a dry run, the bound role does not exist yet; only a user who may bind any role passes the
    # check.
    cluster.control_plane.kubeconfig(cluster.kubeconfig, namespace=cluster.namespace)
    done = subprocess.run(
        [kubectl, "apply", "--dry-run=server", f"--cache-dir={tmp_path}", "-f", "-"],
        input=rendered.out,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    created = [line.split()[0] for line in done.stdout.splitlines()]
    assert len(created) == rendered.out.count("\n---\n") + 1
    assert ("jobset.jobset.x-k8s.io/flights" in created) == (format == "jobset")
    assert "Warning" not in done.stderr, done.stderr
    assert cluster.is_empty


def test_submitting_again_changes_nothing(
    cluster: Cluster, nodes: BareNodes, run: Run, script: Script
) -> None:
    def versions() -> set[str]:
        kinds = ("jobs", "configmaps", "services", "secrets", "roles")
        found = (each for kind in kinds for each in cluster.of_kind(kind))
        return {
            f"{m['uid']} {m['generation'] if 'generation' in m else m['resourceVersion']}"
            for each in found
            for m in [each["metadata"]]
        }

    assert run("submit", *JOB).status == 0
    before = versions()
    done = run("submit", *JOB)
    assert done.out == f"flights in namespace {cluster.namespace}: 11 unchanged\n"
    assert versions() == before
    script(lambda: nodes.wait_placed(6), nodes.end_workers)
    assert run("submit", *JOB, *FOLLOW).out.endswith("flights: succeeded\n")


def test_a_dry_run_shows_the_difference_and_keeps_nothing(cluster: Cluster, run: Run) -> None:
    done = run("submit", *JOB, "--dry-run")
    assert done.status == 0 and cluster.is_empty
    assert "+++ Job flights-worker-1 (submitted)" in done.out
    assert done.err == f"flights in namespace {cluster.namespace}: would be 11 created\n"
    run("submit", *JOB)
    assert run("submit", *JOB, "--dry-run").out == ""
    done = run("submit", *JOB, "--dry-run", "--", "--more")
    changed = [line for line in done.out.splitlines() if line.startswith(("+ ", "- "))]
    assert changed == [
        "-    exec tensorwire run --protocol grpc++ /app/train.py",
        "+    exec tensorwire run --protocol grpc++ /app/train.py --more",
    ]


def test_workers_are_added_and_removed_without_restarting_a_task(
    cluster: Cluster, nodes: BareNodes, run: Run, script: Script
) -> None:
    def uids() -> set[str]:
        alive = [pod for pod in cluster.pods() if "deletionTimestamp" not in pod["metadata"]]
        return {pod["metadata"]["uid"] for pod in alive}

    def workers() -> list[str]:
        return re.findall(r"worker:\d+", run("status", "flights").out)

    assert run("submit", *JOB[:-4], "--workers", "2", "--ps", "2", "--max-workers", "8").status == 0
    nodes.wait_placed(4)
    nodes.run_all()
    first = uids()
    assert run("scale", "flights", "--workers", "6").out == "flights: 2 workers before, 6 now\n"
    nodes.wait_placed(8)
    nodes.run_all()
    assert first < uids() and workers() == [f"worker:{i}" for i in range(6)]
    assert run("scale", "flights", "--workers", "1").out == "flights: 6 workers before, 1 now\n"
    eventually(lambda: len(uids()) == 3)
    assert uids() < first and workers() == ["worker:0"]

    said = one_line(run("scale", "flights", "--workers", "9"), 2)
    assert "flights can have 1 to 8 workers (its --max-workers), not 9" in said
    script(nodes.end_workers)
    assert run("status", "flights", "--follow").out.endswith("flights: succeeded\n")
    said = one_line(run("scale", "flights", "--workers", "2"))
    assert "the job flights has succeeded: submit it again" in said


def test_a_job_without_a_largest_number_of_workers_keeps_its_number(
    cluster: Cluster, run: Run
) -> None:
    assert "there is no job flights" in one_line(run("scale", "flights", "--workers", "2"))
    run("submit", *JOB)
    said = one_line(run("scale", "flights", "--workers", "5"))
    assert "has a fixed number of workers: submit it with --max-workers" in said


def test_another_job_of_the_same_name_is_refused(cluster: Cluster, run: Run) -> None:
    run("submit", *JOB)
    said = one_line(run("submit", *JOB, "--worker-cpu", "2"))
    assert "remove it first with `tensorwire k8s delete`, or use another --name" in said
    assert run("submit", *JOB).out.endswith("11 unchanged\n")


def test_a_quota_that_does_not_allow_the_objects_leaves_none(cluster: Cluster, run: Run) -> None:
    quota(cluster, {"count/jobs.batch": "3"})
    said = one_line(run("submit", *JOB))
    assert f"the quota of namespace {cluster.namespace} is too low" in said
    assert "--worker-cpu" in said
    eventually(lambda: not cluster.of_kind("jobs") and not cluster.of_kind("configmaps"))


def quota(cluster: Cluster, hard: dict[str, str]) -> None:
    path = cluster.path("resourcequotas")
    cluster.make(path, "ResourceQuota", "small", spec={"hard": hard})
    eventually(lambda: cluster.of_kind("resourcequotas")[0].get("status", {}).get("hard"))


def test_a_quota_that_does_not_allow_the_pods_is_told(
    cluster: Cluster, nodes: BareNodes, run: Run
) -> None:
    quota(cluster, {"requests.cpu": "2.5"})
    done = run("submit", *JOB, *FOLLOW, "--timeout", "2")
    assert "its pods cannot be created" in one_line(done) and "exceeded quota" in done.err
    assert "have the quota of the namespace raised" in done.err


def test_the_failed_task_is_named_with_its_last_lines(
    cluster: Cluster, nodes: BareNodes, run: Run, script: Script, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {i}\n" for i in range(50)) + "ValueError: no data\n")
    nodes.logs[WORKER_2] = log

    def fail() -> None:
        nodes.end_task(WORKER_2, 3)
        nodes.wait_ended("flights-worker-1", "Failed")

    script(lambda: nodes.wait_placed(6), nodes.run_all, fail)
    done = run("submit", *JOB, *FOLLOW, "--retries", "0")
    assert done.status == 1
    first, *rest = done.err.splitlines()
    (pod,) = cluster.pods(WORKER_2)
    assert first == (
        f"tensorwire: error: the job flights has failed: worker:2 (pod {pod['metadata']['name']}): "
        "its script ended with exit status 3; its last lines:"
    )
    assert rest[-1] == "  ValueError: no data" and len(rest) == 15
    assert run("status", "flights").status == 1


def test_a_task_that_needed_more_memory_says_so(nodes: BareNodes, run: Run, script: Script) -> None:
    def fail() -> None:
        nodes.end_task("flights-worker-0-0-", 137, "OOMKilled")
        nodes.wait_ended("flights-worker-0", "Failed")

    script(lambda: nodes.wait_placed(6), fail)
    done = run("submit", *JOB, *FOLLOW, "--retries", "0")
    assert "worker:0" in done.err and "increase --worker-memory" in done.err


def unschedulable(cluster: Cluster) -> int:
    said = [c for pod in cluster.pods() for c in pod["status"].get("conditions") or ()]
    return [c.get("reason") for c in said].count("Unschedulable")


def waits_for_its_image(nodes: BareNodes) -> None:
    nodes.set_task("flights-ps-1-0-", {"waiting": {"reason": "ImagePullBackOff"}})


@pytest.mark.parametrize(
    ("options", "trouble", "said"),
    [
        (
            ("--ps-cpu", "65"),
            lambda nodes: None,
            r"Insufficient cpu.*request less \(--ps-cpu, --ps-memory, --workers-per-node\) or add",
        ),
        (
            ("--layout", "isolated"),
            lambda nodes: None,
            "the layout needs more nodes, or nodes with the labels of `tensorwire k8s label`",
        ),
        (
            (),
            waits_for_its_image,
            r"ps:1: the image registry/image:1 cannot be pulled \(ImagePullBackOff\): check --im",
        ),
    ],
)
def test_what_holds_a_job_up_is_said_and_the_wait_has_an_end(
    cluster: Cluster,
    nodes: BareNodes,
    run: Run,
    script: Script,
    options: tuple[str, ...],
    trouble: Callable[[BareNodes], None],
    said: str,
) -> None:
    def act() -> None:
        if options:
            eventually(lambda: unschedulable(cluster))
        else:
            nodes.wait_placed(6)
        nodes.run_all()
        trouble(nodes)

    script(act)
    done = run("submit", *JOB, *options, *FOLLOW, "--timeout", "2")
    assert re.search(said, done.out), done
    assert "tasks of flights are up" in one_line(done) and re.search(said, done.err)
    assert "removes it" in done.err
    assert re.search(said, run("status", "flights").out)


def test_tasks_with_one_trouble_say_it_once(cluster: Cluster, run: Run) -> None:
    run("submit", *JOB)
    cluster.wait_pods(6)

    eventually(lambda: unschedulable(cluster) == 6)
    assert run("status", "flights").out.count("no nodes available") == 2  # for ps and for workers


def test_status_shows_every_task(nodes: BareNodes, run: Run) -> None:
    run("submit", *JOB)
    nodes.wait_placed(6)
    nodes.run_all()
    nodes.set_task("flights-ps-0-0-", {"running": {}}, ready=True, restarts=2)
    done = run("status", "flights", "--interval", "0.1")
    assert done.status == 0
    rows = [line.split("│") for line in done.out.splitlines() if line.startswith("│")]
    shown = [[cell.strip() for cell in row[1:4]] for row in rows]
    assert shown[0] == ["ps:0", "ready", "2"]
    assert [row[0] for row in shown] == ["ps:0", "ps:1", *(f"worker:{i}" for i in range(4))]


def test_logs_come_with_their_tasks_name(nodes: BareNodes, run: Run, tmp_path: Path) -> None:
    run("submit", *JOB)
    nodes.wait_placed(6)
    nodes.run_all()
    for part, text in (("flights-ps-0-0-", "serving\n"), (WORKER_2, "a\nb\nno end")):
        nodes.logs[part] = tmp_path / part
        nodes.logs[part].write_text(text)
    assert run("logs", "flights", "--task", "worker:2").out.splitlines() == [
        *("worker:2: a", "worker:2: b", "worker:2: no end")
    ]
    assert run("logs", "flights", "--task", "worker:2", "--tail", "1").out == "worker:2: no end\n"
    assert "ps:0: serving\n" in run("logs", "flights").out
    followed = run("logs", "flights", "--follow", "--task", "worker:2")
    assert followed.status == 0 and "worker:2: no end\n" in followed.out
    said = one_line(run("logs", "flights", "--task", "worker:9"), status=2)
    assert "it has ps:0 to ps:1, worker:0 to worker:3" in said


def test_logs_of_a_task_without_a_node_say_why(cluster: Cluster, run: Run) -> None:
    run("submit", *JOB)
    cluster.wait_pods(6)
    assert "worker:0: (worker:0 has not started" in run("logs", "flights").out


def test_delete_removes_what_is_the_jobs_and_nothing_else(
    cluster: Cluster, nodes: BareNodes, run: Run
) -> None:
    run("submit", *JOB)
    run("submit", *JOB, "--name", "other")
    done = run("delete", "flights")
    assert done.status == 0 and len(done.out.splitlines()) == 11
    left = [each["metadata"]["name"] for each in cluster.of_kind("jobs")]
    assert len(left) == 4 and all(name.startswith("other") for name in left)
    assert run("delete", "flights").out == (
        f"there is nothing of flights in namespace {cluster.namespace}\n"
    )


def test_a_pod_that_does_not_go_ends_the_wait(cluster: Cluster, nodes: BareNodes, run: Run) -> None:
    run("submit", *JOB)
    nodes.wait_placed(6)
    (pod,) = cluster.pods("flights-ps-0-0-")
    path = cluster.path("pods", pod["metadata"]["name"])
    kept = [*pod["metadata"]["finalizers"], "example.org/kept"]
    cluster.api.patch(path, {"metadata": {"finalizers": kept}})
    said = one_line(run("delete", "flights", "--timeout", "3"))
    assert "1 pods of flights still exist" in said and pod["metadata"]["name"] in said
    cluster.api.patch(path, {"metadata": {"finalizers": []}})


def test_a_jobset_is_submitted_followed_and_removed(
    cluster: Cluster, nodes: BareNodes, run: Run, script: Script
) -> None:
    script(lambda: nodes.wait_placed(6), nodes.run_all, nodes.end_workers)
    done = run("submit", *JOB, "--format", "jobset", *FOLLOW)
    assert done.status == 0 and done.out.endswith("flights: succeeded\n"), done
    # It ends the serving tasks, which are not needed any more.
    eventually(lambda: not cluster.pods("-ps-"))
    assert run("delete", "flights").status == 0
    assert cluster.is_empty


def test_what_only_looks_like_the_jobs_is_left_alone(cluster: Cluster, run: Run) -> None:
    run("submit", *JOB)
    labels = {"app.kubernetes.io/instance": "flights", "app.kubernetes.io/name": "web"}
    cluster.make(cluster.path("configmaps"), "ConfigMap", "web", labels)
    run("delete", "flights")
    assert [each["metadata"]["name"] for each in cluster.of_kind("configmaps")] == ["web"]


def test_nodes_are_labelled_and_unlabelled(
    cluster: Cluster, nodes: BareNodes, run: Run, tmp_path: Path
) -> None:
    names = [f"{cluster.namespace}-{i}" for i in (0, 1)]
    arguments = ("label", "--case", "1", "--layout", "isolated", "--nodes", ",".join(names))
    assert "cannot patch resource" in one_line(run(*arguments, "--apply"))
    cluster.control_plane.kubeconfig(cluster.kubeconfig)  # the administrator may

    def labels() -> list[dict[str, str]]:
        found = [cluster.api.get(f"/api/v1/nodes/{name}")["metadata"]["labels"] for name in names]
        return [{k: v for k, v in each.items() if k.isupper()} for each in found]

    assert run(*arguments, "--apply").out == f"labelled {', '.join(names)}\n"
    assert labels()[1] == {"SCENCE": "2", "CASE": "1", "INDEX": "0", "TYPE": "ps"}
    run(*arguments, "--apply", "--remove")
    assert labels() == [{}, {}]
    assert 'nodes "n3" not found' in one_line(
        run("label", "--case", "1", "--nodes", "n3", "--apply")
    )


ALL_BUT_ROLES: list[dict[str, list[str]]] = [
    {
        "apiGroups": ["", "batch", "networking.k8s.io"],
        "resources": ["jobs", "services", "configmaps", "secrets", "networkpolicies", "pods"],
        "verbs": ["get", "list", "patch", "create", "delete"],
    },
    {"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["get", "list"]},
]


def test_a_missing_permission_is_named(cluster: Cluster, run: Run) -> None:
    """A user without rights for events and roles can use the rest with an existing account."""
    cluster.use_rights("few", ALL_BUT_ROLES)
    said = one_line(run("submit", *JOB))
    assert "cannot patch resource" in said and "--service-account" in said
    cluster.account("mine")
    assert run("submit", *JOB, "--service-account", "mine").status == 0
    assert run("status", "flights").status == 0
    assert run("delete", "flights").status == 0
    cluster.use_rights("none", [])
    assert "you lack a permission" in one_line(run("status", "flights"))


def test_an_unknown_user_namespace_or_job_is_said_in_a_line(cluster: Cluster, run: Run) -> None:
    said = one_line(run("status", "flights"))
    assert f"there is no job flights in namespace {cluster.namespace}" in said
    cluster.control_plane.kubeconfig(cluster.kubeconfig, namespace=cluster.namespace)
    said = one_line(run("submit", *JOB, "--namespace", "nowhere"))
    assert "there is no namespace nowhere" in said
    cluster.control_plane.kubeconfig(cluster.kubeconfig, "wrong", cluster.namespace)
    assert "the cluster does not accept your login" in one_line(run("status", "flights"))


def token_of(cluster: Cluster) -> str:
    (secret,) = cluster.of_kind("secrets")
    token: str = secret["data"]["token"]
    return token


def test_a_job_has_one_token_however_often_it_is_submitted_and_nobody_is_shown_it(
    cluster: Cluster, run: Run
) -> None:
    assert "(not shown)" in run("submit", *JOB, "--dry-run").out
    assert run("submit", *JOB).status == 0
    token = token_of(cluster)
    assert run("submit", *JOB).out.endswith("11 unchanged\n")
    assert token_of(cluster) == token
    shown = run("submit", *JOB, "--dry-run", "--retries", "5")
    assert token not in shown.out + shown.err


def secret(cluster: Cluster, **rest: Object) -> None:
    cluster.make(cluster.path("secrets"), "Secret", "flights", **rest)


def test_a_secret_of_somebody_elses_is_not_taken(cluster: Cluster, run: Run) -> None:
    secret(cluster, data={"token": "eA=="})
    assert "--token-secret" in one_line(run("submit", *JOB))
    assert run("submit", *JOB, "--token-secret", "flights").status == 0
    assert len(cluster.of_kind("secrets")) == 1


def test_a_secret_of_the_jobs_that_lost_its_token_is_one_line(cluster: Cluster, run: Run) -> None:
    secret(cluster, labels={"tensorwire/job": "flights"})
    assert "the Secret flights exists and is not of this job" in one_line(run("submit", *JOB))


def test_who_may_not_look_at_secrets_is_told_what_else_there_is(cluster: Cluster, run: Run) -> None:
    rules = [
        {**rule, "resources": [r for r in rule["resources"] if r != "secrets"]}
        for rule in ALL_BUT_ROLES
    ]
    cluster.use_rights("no-secrets", rules)
    cluster.account("mine")
    mine = ("--service-account", "mine")
    said = one_line(run("submit", *JOB, *mine))
    assert "--token-secret" in said and "--no-token" in said
    assert run("submit", *JOB, *mine, "--no-token").status == 0


@pytest.mark.parametrize("format", ["plain", "jobset"])
def test_two_jobs_of_one_name_in_two_namespaces_are_two_jobs(
    cluster: Cluster, nodes: BareNodes, run: Run, format: str, tmp_path: Path
) -> None:
    with Cluster(cluster.control_plane, tmp_path) as other:
        assert run("submit", *JOB, "--format", format).status == 0
        nodes.wait_placed(6)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KUBECONFIG", str(other.kubeconfig))
            assert run("submit", *JOB, "--format", format).status == 0
            eventually(lambda: len(other.pods()) == 6)
            assert token_of(other) != token_of(cluster)
            eventually(lambda: all("nodeName" in pod["spec"] for pod in other.pods()))
            for pod in other.pods():
                other.delete("pods", pod["metadata"]["name"], gracePeriodSeconds=0)
        assert len(cluster.pods()) == 6
