"""submit, status, logs, label and delete: the command line and the official client against an API
server of the tests'."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from k8s_double.api_server import ApiServer
from k8s_double.metrics import metrics
from tensorwire.cli.main import main


class Done(NamedTuple):
    status: int
    out: str
    err: str


Run = Callable[..., Done]

JOB = (
    *("--name", "flights", "--image", "registry/image:1", "--script", "/app/train.py"),
    *("--workers", "4", "--ps", "2"),
)
FOLLOW = ("--wait", "--interval", "0.1")
PODS = [
    *("flights-ps-0-0-x7k2p", "flights-ps-1-0-x7k2p"),
    *(f"flights-worker-{group}-{member}-x7k2p" for group in (0, 1) for member in (0, 1)),
]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_k8s(*arguments: str) -> Done:
        with pytest.raises(SystemExit) as stop:
            main(["k8s", *arguments])
        code = stop.value.code
        assert isinstance(code, int)
        return Done(code, *capsys.readouterr())

    return run_k8s


def script(api: ApiServer, *acts: Callable[[ApiServer], None]) -> None:
    """Lets one act happen each time that the client looks, and the last one no more than once."""
    left = list(acts)

    def next_act(server: ApiServer) -> None:
        if left:
            left.pop(0)(server)

    api.on_look = next_act


def end_workers(api: ApiServer) -> None:
    for group in (0, 1):
        for member in (0, 1):
            api.end_task(f"flights-worker-{group}-{member}-x7k2p", 0, "Completed")
        api.end_job(f"flights-worker-{group}", "Complete")


def one_line(done: Done, status: int = 1) -> str:
    assert done.status == status, done
    assert done.err.startswith("tensorwire: error: ") and done.err.count("\n") == 1, done.err
    return done.err


def test_a_job_is_submitted_followed_to_its_end_and_removed(api: ApiServer, run: Run) -> None:
    script(
        api,
        lambda server: None,
        lambda server: server.run_all(but="worker-1"),
        lambda server: server.run_all(),
        end_workers,
    )
    done = run("submit", *JOB, *FOLLOW, "--clean-up")
    assert done.status == 0, done
    lines = done.out.splitlines()
    assert lines[0] == "flights in namespace default: 11 created"
    assert lines[1] == "flights: of 6 tasks 6 waiting for a node"
    assert lines[2] == "flights: of 6 tasks 4 ready, 2 waiting for a node"
    assert lines[3] == "flights: of 6 tasks 6 ready"
    assert lines[4] == "flights: succeeded"
    assert lines[5] == "removed 11 objects"
    assert {key[0] for key in api.objects} == {"namespaces"}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl")
@pytest.mark.parametrize("format", ["plain", "jobset"])
def test_kubectl_takes_the_manifests(api: ApiServer, run: Run, tmp_path: Path, format: str) -> None:
    rendered = run("render", *JOB, "--format", format)
    # Without the server's OpenAPI document, which the schemas of other tests stand for.
    arguments = ("--dry-run=client", "--validate=false", f"--cache-dir={tmp_path}", "-f", "-")
    done = subprocess.run(
        ["kubectl", "apply", *arguments],
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
    assert api.requests == []


def test_steps_and_throughput_come_from_the_ps(api: ApiServer, run: Run) -> None:
    def train(seconds: float) -> Callable[[ApiServer], None]:
        def act(server: ApiServer) -> None:
            server.run_all()
            for index, pod in enumerate(PODS[:2]):
                served = metrics(f"ps:{index}", seconds, workers=4).to_json()
                server.metrics[pod] = lambda served=served: served

        return act

    script(api, train(2.5), train(5), end_workers)
    done = run("submit", *JOB, *FOLLOW)
    assert done.status == 0, done
    line = next(line for line in done.out.splitlines() if "steps/s" in line)
    assert line.startswith("flights: of 6 tasks 6 ready; 200 steps, ")
    assert line.endswith(" MB/s")


def test_submitting_again_changes_nothing(api: ApiServer, run: Run) -> None:
    assert run("submit", *JOB).status == 0
    api.requests.clear()
    done = run("submit", *JOB)
    assert done.out == "flights in namespace default: 11 unchanged\n"
    assert api.requests == []
    script(api, end_workers)
    assert run("submit", *JOB, *FOLLOW).out.endswith("flights: succeeded\n")


def test_a_dry_run_shows_the_difference_and_keeps_nothing(api: ApiServer, run: Run) -> None:
    done = run("submit", *JOB, "--dry-run")
    assert done.status == 0 and api.requests == []
    assert "+++ Job flights-worker-1 (submitted)" in done.out
    assert done.err == "flights in namespace default: would be 11 created\n"
    run("submit", *JOB)
    assert run("submit", *JOB, "--dry-run").out == ""
    done = run("submit", *JOB, "--dry-run", "--", "--more")
    assert "+    exec tensorwire run --protocol grpc++ /app/train.py --more" in done.out
    assert "suspend" not in done.out


def test_another_job_of_the_same_name_is_refused(api: ApiServer, run: Run) -> None:
    run("submit", *JOB)
    api.requests.clear()
    said = one_line(run("submit", *JOB, "--worker-cpu", "2"))
    assert "`tensorwire k8s delete` it first, or take another --name" in said
    assert api.requests == []


def test_what_was_made_before_a_refusal_is_removed(api: ApiServer, run: Run) -> None:
    api.quota_of_jobs = 3
    said = one_line(run("submit", *JOB))
    assert "namespace default has no room in its quota" in said and "--worker-cpu" in said
    assert {key[0] for key in api.objects} == {"namespaces"}


def test_the_failed_task_is_named_with_its_last_lines(api: ApiServer, run: Run) -> None:
    def fail(server: ApiServer) -> None:
        server.end_task(PODS[4], 3)
        server.logs[PODS[4]] = "".join(f"line {i}\n" for i in range(50)) + "ValueError: no data\n"
        server.end_job("flights-worker-1", "Failed")

    script(api, lambda server: server.run_all(), fail)
    done = run("submit", *JOB, *FOLLOW)
    assert done.status == 1
    first, *rest = done.err.splitlines()
    assert first == (
        "tensorwire: error: the job flights has failed: worker:2 (pod flights-worker-1-0-x7k2p): "
        "its script ended with exit status 3; its last lines:"
    )
    assert rest[-1] == "  ValueError: no data" and len(rest) == 15
    assert run("status", "flights").status == 1


def test_a_task_that_needed_more_memory_says_so(api: ApiServer, run: Run) -> None:
    def fail(server: ApiServer) -> None:
        server.end_task(PODS[2], 137, "OOMKilled")
        server.end_job("flights-worker-0", "Failed")

    script(api, fail)
    done = run("submit", *JOB, *FOLLOW)
    assert "worker:0" in done.err and "give --worker-memory more" in done.err


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (
            lambda api: api.cannot_schedule(
                PODS[0], "0/3 nodes are available: 3 Insufficient cpu."
            ),
            "ps:0: it fits on no node (0/3 nodes are available: 3 Insufficient cpu.): ask for less "
            "(--ps-cpu, --ps-memory, --workers-per-node) or add nodes",
        ),
        (
            lambda api: api.cannot_schedule(
                PODS[3], "0/3 nodes are available: 3 node(s) didn't match pod affinity rules."
            ),
            "the layout needs more nodes, or nodes with the labels of `tensorwire k8s label`",
        ),
        (
            lambda api: api.set_task(PODS[1], {"waiting": {"reason": "ImagePullBackOff"}}),
            "ps:1: the image registry/image:1 cannot be pulled (ImagePullBackOff): check --image",
        ),
        (
            lambda api: api.cannot_make_pods(
                "flights-worker-1", 'pods "x" is forbidden: exceeded quota: small'
            ),
            "flights-worker-1: its pods cannot be made",
        ),
    ],
)
def test_what_holds_a_job_up_is_said_and_the_wait_has_an_end(
    api: ApiServer, run: Run, trouble: Callable[[ApiServer], None], said: str
) -> None:
    def act(server: ApiServer) -> None:
        server.run_all()
        trouble(server)

    script(api, act)
    done = run("submit", *JOB, *FOLLOW, "--up-within", "1")
    assert said in done.out
    assert "tasks of flights are up" in one_line(done) and said in done.err
    assert "removes it" in done.err
    assert said in run("status", "flights").out


def test_a_hundred_tasks_with_one_trouble_say_it_once(api: ApiServer, run: Run) -> None:
    def act(server: ApiServer) -> None:
        for pod in PODS:
            server.cannot_schedule(pod, "0/1 nodes are available: 1 Too many pods.")

    run("submit", *JOB)
    act(api)
    assert run("status", "flights").out.count("Too many pods") == 2  # for ps and for workers


def test_status_shows_every_task(api: ApiServer, run: Run) -> None:
    run("submit", *JOB)
    api.run_all()
    api.set_task(PODS[0], {"running": {}}, ready=True, restarts=2)
    done = run("status", "flights", "--interval", "0.1")
    assert done.status == 0
    rows = [line.split("│") for line in done.out.splitlines() if line.startswith("│")]
    shown = [[cell.strip() for cell in row[1:5]] for row in rows]
    assert shown[0] == ["ps:0", "ready", "2", "node-1"]
    assert [row[0] for row in shown] == ["ps:0", "ps:1", *(f"worker:{i}" for i in range(4))]


def test_logs_come_with_their_tasks_name(api: ApiServer, run: Run) -> None:
    run("submit", *JOB)
    api.run_all()
    api.logs = {PODS[0]: "serving\n", PODS[4]: "a\nb\nno end"}
    assert run("logs", "flights", "--task", "worker:2").out.splitlines() == [
        *("worker:2: a", "worker:2: b", "worker:2: no end")
    ]
    assert run("logs", "flights", "--task", "worker:2", "--tail", "1").out == "worker:2: no end\n"
    everything = run("logs", "flights").out
    assert "ps:0: serving\n" in everything and "worker:0: (worker:0 has not started" in everything
    followed = run("logs", "flights", "--follow", "--task", "worker")
    assert followed.status == 0 and "worker:2: no end\n" in followed.out
    said = one_line(run("logs", "flights", "--task", "worker:9"), status=2)
    assert "it has ps:0 to ps:1, worker:0 to worker:3" in said


def test_delete_removes_what_is_the_jobs_and_nothing_else(api: ApiServer, run: Run) -> None:
    run("submit", *JOB)
    run("submit", *JOB, "--name", "other")
    done = run("delete", "flights")
    assert done.status == 0 and len(done.out.splitlines()) == 11
    left = {key[2] for key in api.objects if key[0] != "namespaces"}
    assert left and all(name.startswith("other") for name in left)
    assert run("delete", "flights").out == "there is nothing of flights in namespace default\n"


def test_a_pod_that_does_not_go_ends_the_wait(api: ApiServer, run: Run) -> None:
    run("submit", *JOB)
    api.pod(PODS[0])["metadata"]["ownerReferences"] = []
    said = one_line(run("delete", "flights", "--timeout", "0"))
    assert "1 pods of flights are still there" in said and PODS[0] in said


def test_a_jobset_is_submitted_and_found_missing(api: ApiServer, run: Run) -> None:
    assert run("submit", *JOB, "--format", "jobset").status == 0
    assert [o["metadata"]["name"] for o in api.of_kind("jobsets")] == ["flights"]
    assert "flights: its tasks are not made yet" in run("status", "flights").out
    assert run("delete", "flights").status == 0
    api.has_jobset = False
    said = one_line(run("submit", *JOB, "--format", "jobset"))
    assert "the cluster has no JobSet" in said and "--format plain" in said
    assert run("delete", "flights").status == 0


def test_what_only_looks_like_the_jobs_is_left_alone(api: ApiServer, run: Run) -> None:
    run("submit", *JOB)
    labels = {"app.kubernetes.io/instance": "flights", "app.kubernetes.io/name": "web"}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web", "labels": labels}}
    api.create_or_apply(("configmaps", "default", "web"), body)
    run("delete", "flights")
    assert ("configmaps", "default", "web") in api.objects


def test_nodes_are_labelled_and_unlabelled(api: ApiServer, run: Run) -> None:
    for name in ("n1", "n2"):
        api.add_node(name)
    arguments = ("label", "--case", "1", "--layout", "isolated", "--nodes", "n1,n2", "--apply")
    assert run(*arguments).out == "labelled n1, n2\n"
    labels = {n["metadata"]["name"]: n["metadata"]["labels"] for n in api.of_kind("nodes")}
    assert labels["n2"] == {"SCENCE": "2", "CASE": "1", "INDEX": "0", "TYPE": "ps"}
    run(*arguments, "--remove")
    assert all(n["metadata"]["labels"] == {} for n in api.of_kind("nodes"))
    assert 'nodes "n3" not found' in one_line(
        run("label", "--case", "1", "--nodes", "n3", "--apply")
    )


def test_a_missing_permission_is_named(api: ApiServer, run: Run) -> None:
    api.forbidden.add(("patch", "roles"))
    said = one_line(run("submit", *JOB))
    assert 'User "jo" cannot patch' in said and "--service-account" in said
    assert run("submit", *JOB, "--service-account", "mine").status == 0
    api.forbidden = {("list", "jobs")}
    assert "you lack a permission" in one_line(run("status", "flights"))


def test_who_may_not_see_events_or_roles_can_still_use_the_rest(api: ApiServer, run: Run) -> None:
    api.forbidden = {("list", "events"), ("list", "roles"), ("list", "rolebindings")}
    assert run("submit", *JOB, "--service-account", "mine").status == 0
    assert run("status", "flights").status == 0
    assert run("delete", "flights").status == 0


def test_an_unknown_user_namespace_or_job_is_said_in_a_line(api: ApiServer, run: Run) -> None:
    assert "there is no job flights in namespace default" in one_line(run("status", "flights"))
    said = one_line(run("submit", *JOB, "--namespace", "nowhere"))
    assert "there is no namespace nowhere" in said
    api.unauthorized = True
    assert "the cluster does not know you" in one_line(run("status", "flights"))


def test_a_wrong_kubeconfig_is_said_in_a_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config"
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert "no cluster is configured" in one_line(run("status", "flights"), status=2)
    path.write_text("[")
    assert "your kubeconfig cannot be read" in one_line(run("status", "flights"), status=2)
    server = ApiServer()
    with server.serve(tmp_path) as kubeconfig:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        said = one_line(run("status", "flights", "--context", "other"), status=2)
        assert "no usable context other" in said
    assert "no answer from the cluster at http://127.0.0.1" in one_line(run("status", "flights"))


def token_of(api: ApiServer) -> str:
    (secret,) = api.of_kind("secrets")
    token: str = secret["data"]["token"]
    return token


def test_a_job_has_one_token_however_often_it_is_submitted_and_nobody_is_shown_it(
    api: ApiServer, run: Run
) -> None:
    assert "(not shown)" in run("submit", *JOB, "--dry-run").out
    assert run("submit", *JOB).status == 0
    token = token_of(api)
    again = run("submit", *JOB)
    assert again.out == "flights in namespace default: 11 unchanged\n"
    assert token_of(api) == token
    shown = run("submit", *JOB, "--dry-run", "--retries", "5")
    assert token not in shown.out + shown.err


def test_a_secret_of_somebody_elses_is_not_taken(api: ApiServer, run: Run) -> None:
    metadata = {"name": "flights"}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"token": "eA=="}}
    api.create_or_apply(("secrets", "default", "flights"), secret)
    assert "--token-secret" in one_line(run("submit", *JOB))
    assert run("submit", *JOB, "--token-secret", "flights").status == 0
    assert len(api.of_kind("secrets")) == 1


def test_a_secret_of_the_jobs_that_lost_its_token_is_one_line(api: ApiServer, run: Run) -> None:
    assert run("submit", *JOB).status == 0
    (secret,) = api.of_kind("secrets")
    del secret["data"]
    assert "there is a Secret flights that is not this job's" in one_line(run("submit", *JOB))


def test_who_may_not_look_at_secrets_is_told_what_else_there_is(api: ApiServer, run: Run) -> None:
    api.forbidden = {("get", "secrets")}
    said = one_line(run("submit", *JOB))
    assert "--token-secret" in said and "--no-token" in said
    assert run("submit", *JOB, "--no-token").status == 0
