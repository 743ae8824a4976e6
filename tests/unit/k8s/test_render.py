"""Manifests: they are valid for Kubernetes, and describe the job."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from k8s_cluster.jobs import job, job_of_case, manifests
from k8s_cluster.manifests import by_kind, jobs_of, pods_of, task_container
from tensorwire.cluster import parse_tf_config, read_endpoint_map
from tensorwire.errors import TensorwireError, UsageError
from tensorwire.k8s.job import FORMATS, ROLES_THAT_DECIDE, SCHEDULINGS, Resources, Script
from tensorwire.k8s.layout import LAYOUTS, PUBLISHED, JobCase, find_case, known_cases
from tensorwire.k8s.pod_template import PodTemplate
from tensorwire.k8s.render import TEMPLATES, copy_templates, files, parse, render

# The other kinds are of add-ons; a real API server validates them in other tests.
VALIDATED = (
    *("ConfigMap", "Job", "NetworkPolicy", "Role", "RoleBinding"),
    *("Secret", "Service", "ServiceAccount"),
)
IN_NAMESPACE = "kubernetes.io/metadata.name"
# Kubernetes supports a minor version until three newer ones are out.
NEWEST = int(kubernetes_validate.latest_version().split(".")[1])
SUPPORTED = [f"1.{minor}" for minor in range(NEWEST - 3, NEWEST + 1)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", PUBLISHED, ids=lambda case: f"case-{case.name}")
def test_all_eight_cases_are_valid_under_every_supported_version(
    case: JobCase, layout: str
) -> None:
    # The other cases differ from the first in numbers only.
    for scheduling in SCHEDULINGS:
        checked = set()
        for document in manifests(job_of_case(case, layout, scheduling=scheduling)):
            # Jobs of a role differ only in their indices.
            labels = document["metadata"]["labels"]
            key = document["kind"], labels.get("app.kubernetes.io/component")
            if key in checked:
                continue
            checked.add(key)
            for version in SUPPORTED if case is PUBLISHED[0] else SUPPORTED[-1:]:
                kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("api", ROLES_THAT_DECIDE)
def test_every_option_gives_valid_manifests(format: str, api: str) -> None:
    of = job(
        format=format,
        api=api,
        namespace="team",
        environment={"NAME": 'a "quoted" $(value): {x}\n'},
        claims={"data": "/data", "models": "/models"},
        pull_secret="registry",
        service_account="mine",
        tensor_fuse=True,
        metrics_from="monitoring",
        arguments=["--a b", "{task_index}", "{ps_hosts}"],
    )
    rendered = manifests(of)
    assert all(d["metadata"]["namespace"] == "team" for d in rendered)
    for document in [d for d in rendered if d["kind"] in VALIDATED] + [
        {"apiVersion": "batch/v1", **each} for each in jobs_of(rendered)
    ]:
        kubernetes_validate.validate(document, SUPPORTED[-1], strict=True)
    for pod in pods_of(rendered):
        env = {e["name"]: e.get("value") for e in task_container(pod.spec)["env"]}
        assert env["NAME"] == 'a "quoted" $$(value): {x}\n'


@pytest.mark.parametrize("format", FORMATS)
def test_pods_that_share_memory_meet_in_a_directory_of_their_node(format: str) -> None:
    rendered = manifests(job(format=format, token="t" * 64, shared_memory=True))
    for document in [d for d in rendered if d["kind"] in VALIDATED] + [
        {"apiVersion": "batch/v1", **each} for each in jobs_of(rendered)
    ]:
        kubernetes_validate.validate(document, SUPPORTED[-1], strict=True)
    for pod in pods_of(rendered):
        task = task_container(pod.spec)
        env = {e["name"]: e.get("value") for e in task["env"]}
        folder = env["TENSORWIRE_HOST_DIR"]
        assert folder in [mount["mountPath"] for mount in task["volumeMounts"]]
        (host,) = (v["hostPath"] for v in pod.spec["volumes"] if "hostPath" in v)
        assert host == {"path": "/run/tensorwire/flights", "type": "DirectoryOrCreate"}
        # Root gives it to the tasks' user, who starts nothing before.
        first = pod.spec["initContainers"][0]
        assert first["command"] == ["chown", "10001:10001", folder]
        assert first["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
    for pod in pods_of(manifests(job(format=format, token="t" * 64))):
        assert "hostPath" not in str(pod.spec)


def test_two_hundred_workers_render_in_less_than_two_seconds() -> None:
    began = time.process_time()
    render(job_of_case(PUBLISHED[3], "isolated"))
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize("format", FORMATS)
def test_a_task_finds_who_it_is_and_where_the_others_are(format: str, tmp_path: Path) -> None:
    """Runs the start script as a pod would run it."""
    of = job(
        5,
        2,
        format=format,
        wanted_workers_per_node=3,
        exact_rewrites=True,
        arguments=["{task_type}", "a b"],
    )
    rendered = manifests(of)
    (config,) = by_kind(rendered, "ConfigMap")
    reached = {pod.name for pod in pods_of(rendered)}
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "tensorwire").write_text('#!/bin/sh\nprintf "%s\\n" "$TF_CONFIG" "$@"\n')
    (tools / "tensorwire").chmod(0o755)
    (tmp_path / "start").write_text(config["data"]["start"])
    tasks = set()
    for each in jobs_of(rendered):
        container = task_container(each["spec"]["template"]["spec"])
        assert container["command"] == ["/bin/sh", "/etc/tensorwire/start"]
        env = {e["name"]: e.get("value", "") for e in container["env"]}
        for member in range(each["spec"]["completions"]):
            done = subprocess.run(
                ["/bin/sh", tmp_path / "start"],
                env={
                    **env,
                    "PATH": f"{tools}:/usr/bin:/bin",
                    "CLUSTER": config["data"]["cluster"],
                    "JOB_COMPLETION_INDEX": str(member),
                },
                capture_output=True,
                text=True,
                check=True,
            )
            said, *arguments = done.stdout.splitlines()
            tf_config = parse_tf_config(said)
            assert tf_config is not None and tf_config.task is not None
            task = tf_config.task
            tasks.add(str(task))
            assert arguments == [
                *("run", "--protocol", "grpc++", "--exact-rewrites", "/etc/tensorwire/train.py"),
                *(task.job, "a b"),
            ]
            host = tf_config.cluster.address(task).rpartition(":")[0]
            assert host == f"{each['metadata']['name']}-{member}.flights"
    assert len(tasks) == 7
    addresses = dict(tf_config.cluster.tasks()).values()
    assert {address.rpartition(":")[0] for address in addresses} == reached
    (tmp_path / "map").write_text(config["data"][".endpoint_map"])
    endpoints = read_endpoint_map(tmp_path / "map")
    assert set(endpoints) == set(addresses)
    assert all(data == f"{grpc[:-5]}:22222" for grpc, data in endpoints.items())


def test_a_task_has_the_resources_threads_ports_and_limits_of_its_role() -> None:
    rendered = manifests(job(ps_cpu="24", ps_memory="32Gi"))
    for pod in pods_of(rendered):
        task = task_container(pod.spec)
        env = {e["name"]: e.get("value") for e in task["env"]}
        ps = pod.labels["app.kubernetes.io/component"] == "ps"
        wanted = {"cpu": "24", "memory": "32Gi"} if ps else {"cpu": "300m", "memory": "4Gi"}
        assert task["resources"] == {"requests": wanted, "limits": wanted}
        threads = env["NETWORK_PS_CORE_NUMBER" if ps else "NETWORK_WORKER_CORE_NUMBER"]
        assert threads == ("8" if ps else "1")
        for kind in ("PS", "WORKER"):
            assert env[f"{kind}_ENABLE_POLLING"] == "False"
            assert env[f"{kind}_DISABLE_PIN_CORES"] == "True"
        ports = {port["name"]: port["containerPort"] for port in task["ports"]}
        assert ports == {"grpc": 2222, "data": 22222, "metrics": 9100}
        assert ("livenessProbe" in task) == ps


def test_the_users_variables_go_before_ours() -> None:
    for pod in pods_of(manifests(job(environment={"PS_ENABLE_POLLING": "True"}))):
        names = [e["name"] for e in task_container(pod.spec)["env"]]
        assert len(set(names)) == len(names)
        assert {"name": "PS_ENABLE_POLLING", "value": "True"} in task_container(pod.spec)["env"]


def test_pods_run_without_root_and_meet_the_restricted_standard() -> None:
    for pod in pods_of(manifests(job(api="strategy"))):
        assert pod.spec["securityContext"]["runAsNonRoot"] is True
        assert pod.spec["securityContext"]["runAsUser"] > 0
        assert pod.spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in [*pod.spec.get("initContainers", ()), *pod.spec["containers"]]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize("api", ROLES_THAT_DECIDE)
def test_who_decides_ends_by_itself_and_who_serves_is_restarted(api: str) -> None:
    for each in jobs_of(manifests(job(api=api))):
        pod = each["spec"]["template"]["spec"]
        role = each["metadata"]["labels"]["app.kubernetes.io/component"]
        decides = role in ROLES_THAT_DECIDE[api]
        assert each["metadata"]["labels"]["tensorwire/decides"] == str(decides).lower()
        if decides:
            assert pod["restartPolicy"] == "Never" and each["spec"]["backoffLimitPerIndex"] == 3
            assert [c["name"] for c in pod["containers"]] == ["task"]
        else:
            assert [(c["name"], c["restartPolicy"]) for c in pod["initContainers"]] == [
                ("task", "Always")
            ]
            assert [c["name"] for c in pod["containers"]] == ["keeper"]


def test_a_trainjob_is_the_jobset_that_its_runtime_describes() -> None:
    rendered = manifests(job(4, 2, format="trainjob", queue="team"))
    (jobset,) = by_kind(manifests(job(4, 2, format="jobset", queue="team")), "JobSet")
    (runtime,), (trainjob,) = by_kind(rendered, "TrainingRuntime"), by_kind(rendered, "TrainJob")
    assert runtime["spec"]["template"]["spec"] == jobset["spec"]
    assert trainjob["spec"]["runtimeRef"] == {
        "apiGroup": "trainer.kubeflow.org",
        "kind": "TrainingRuntime",
        "name": "flights",
    }
    for each in (jobset, trainjob):
        assert each["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
        assert "suspend" not in each["spec"]  # a second submission would suspend a running job
    assert [pod.name for pod in pods_of(rendered)] == [
        pod.name for pod in pods_of(manifests(job(4, 2, format="jobset")))
    ]


@pytest.mark.parametrize("format", FORMATS)
def test_volcano_starts_all_tasks_or_none(format: str) -> None:
    rendered = manifests(job(4, 2, format=format, volcano_queue="team"))
    (group,) = by_kind(rendered, "PodGroup")
    assert group["spec"] == {"minMember": 6, "queue": "team"}
    for pod in pods_of(rendered):
        assert pod.spec["schedulerName"] == "volcano"
        assert pod.annotations["scheduling.k8s.io/group-name"] == group["metadata"]["name"]


@pytest.mark.parametrize("api", ROLES_THAT_DECIDE)
def test_a_jobset_succeeds_with_those_that_decide(api: str) -> None:
    of = job(4, 2, api=api, format="jobset", evaluator=api == "estimator")
    (jobset,) = by_kind(manifests(of), "JobSet")
    policy = jobset["spec"]["successPolicy"]
    wanted = {
        "worker": ["worker-0", "worker-1"],
        "chief": ["chief-0"],
        "evaluator": ["evaluator-0"],
    }
    assert policy["operator"] == "All"
    assert sorted(policy["targetReplicatedJobs"]) == sorted(
        name for role in ROLES_THAT_DECIDE[api] for name in wanted[role]
    )
    names = {each["name"] for each in jobset["spec"]["replicatedJobs"]}
    assert set(policy["targetReplicatedJobs"]) <= names


def test_only_the_jobs_own_pods_are_admitted() -> None:
    rendered = manifests(job())
    (policy,) = by_kind(rendered, "NetworkPolicy")
    own = {"matchLabels": {"tensorwire/job": "flights"}}
    assert policy["spec"]["podSelector"] == own
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": own}]}]
    (service,) = by_kind(rendered, "Service")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True


@pytest.mark.parametrize(
    ("metrics_from", "peers"),
    [
        ("monitoring", [{"namespaceSelector": {"matchLabels": {IN_NAMESPACE: "monitoring"}}}]),
        ("*", None),
    ],
)
def test_metrics_are_for_the_namespace_that_is_named(metrics_from: str, peers: Any) -> None:
    rendered = manifests(job(metrics_from=metrics_from))
    (policy,) = by_kind(rendered, "NetworkPolicy")
    _, metrics = policy["spec"]["ingress"]
    assert metrics == {"ports": [{"port": 9100}], **({"from": peers} if peers else {})}
    scraped = {each.annotations["prometheus.io/scrape"] for each in pods_of(rendered)}
    assert scraped == {"true"}
    for name in ("Monitoring", "a b", ""):
        with pytest.raises(UsageError, match="the name of a namespace"):
            job(metrics_from=name)


def test_only_the_container_that_looks_after_the_job_gets_kubernetes_token() -> None:
    for pod in pods_of(manifests(job())):
        assert pod.spec["automountServiceAccountToken"] is False
        tokens = {
            volume["name"]
            for volume in pod.spec["volumes"]
            if any(
                "serviceAccountToken" in s for s in volume.get("projected", {}).get("sources", ())
            )
        }
        containers = [*pod.spec.get("initContainers", ()), *pod.spec["containers"]]
        given = [
            each["name"]
            for each in containers
            if tokens & {mount["name"] for mount in each.get("volumeMounts", ())}
        ]
        ps = pod.labels["app.kubernetes.io/component"] == "ps"
        assert given == (["keeper"] if ps else [])
    borrowed = manifests(job(service_account="mine"))
    assert {d["kind"] for d in borrowed} == {"Service", "NetworkPolicy", "ConfigMap", "Job"}


def test_a_script_that_is_here_travels_with_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "#!/usr/bin/env python\n\tprint('\"{{ }}\" \\ $x: é')  \n\n\n"
    Path("t.py").write_text(text, encoding="utf-8")
    Path("train me.py").touch()
    with pytest.raises(UsageError, match="only letters"):
        Script.named("train me.py")
    with pytest.raises(UsageError, match=r"cannot read the script none\.py"):
        Script.named("none.py")
    (config,) = by_kind(manifests(job(script=Script.named("t.py"))), "ConfigMap")
    assert config["data"]["t.py"] == text
    (config,) = by_kind(manifests(job(script=Script.named("/app/t.py"))), "ConfigMap")
    assert set(config["data"]) == {"cluster", ".endpoint_map", "start"}
    assert "/app/t.py" in config["data"]["start"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "Flights"}, "is not a valid Service name"),
        ({"name": "a" * 41}, "at most 40"),
        ({"scheduling": "labels"}, "needs --case"),
        ({"grpc_port": 9100}, "must differ"),
        ({"environment": {"A-B": "1"}}, "not a valid name of an environment variable"),
        ({"environment": {"TF_CONFIG": "{}"}}, "cannot be set, because it tells a pod"),
        ({"claims": {"data": "relative"}}, "ABSOLUTE"),
        ({"queue": "team"}, "requires --format jobset"),
        ({"queue": "a", "volcano_queue": "b", "format": "jobset"}, "waits in one queue"),
        ({"volcano_queue": "A B"}, "not a valid name of a queue"),
        ({"shared_memory": True, "layout": "isolated"}, "give --layout colocated"),
        ({"shared_memory": True}, "needs a job token"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        job(**options)


@pytest.mark.parametrize("cpu", ["", "two", "-1", "0", "1.2.3", "300M"])
def test_quantities_that_are_none_are_refused(cpu: str) -> None:
    with pytest.raises(UsageError, match="invalid CPU quantity"):
        Resources(cpu, "4Gi")
    with pytest.raises(UsageError, match="invalid memory quantity"):
        Resources("1", cpu + "x")


def test_a_template_of_the_users_goes_before_ours(tmp_path: Path) -> None:
    copied = copy_templates(tmp_path / "mine")
    assert {path.name for path in copied} == {path.name for path in TEMPLATES.iterdir()}
    with pytest.raises(UsageError, match="exists already"):
        copy_templates(tmp_path / "mine")
    for path in copied:
        if path.name != "network.yaml.j2":
            path.unlink()
    (tmp_path / "mine" / "network.yaml.j2").write_text(
        "---\napiVersion: v1\nkind: Service\nmetadata: {name: {{ job.name }}-mine}\n"
    )
    rendered = parse(render(job(), tmp_path / "mine"))
    assert rendered[0]["metadata"]["name"] == "flights-mine"
    assert not by_kind(rendered, "NetworkPolicy") and by_kind(rendered, "Job")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("---\nkind: {{ job.nonsense }}\n", r"network\.yaml\.j2:2: .*nonsense"),
        ("{% if %}", r"network\.yaml\.j2:1: "),
        ("---\na: [\n---\n", "not produce valid YAML"),
        ("---\na: 1\n", "without kind"),
    ],
)
def test_a_wrong_template_is_named(template: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "network.yaml.j2").write_text(template)
    with pytest.raises(TensorwireError, match=message):
        parse(render(job(), tmp_path))


POD_TEMPLATE = """
metadata:
  annotations: {sidecar.istio.io/inject: "false"}
spec:
  nodeSelector: {disk: fast}
  tolerations: [{key: gpu, operator: Exists}]
  priorityClassName: high
  containers:
    - name: task
      env:
        - {name: NAME, value: theirs}
        - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
      resources: {limits: {nvidia.com/gpu: 1}}
      volumeMounts: [{name: cache, mountPath: /cache}]
    - {name: more, image: other}
  volumes: [{name: cache, emptyDir: {}}]
"""


@pytest.mark.parametrize("format", FORMATS)
def test_a_pod_template_is_merged_into_all_pods_or_those_of_a_role(
    format: str, tmp_path: Path
) -> None:
    (tmp_path / "all.yaml").write_text(POD_TEMPLATE)
    (tmp_path / "ps.yaml").write_text("spec: {nodeSelector: {disk: slow}}")
    of = job(
        format=format,
        environment={"NAME": "ours", "OTHER": "kept"},
        annotations={"note": "a: b"},
        pod_templates=[
            PodTemplate.read(str(tmp_path / "all.yaml")),
            PodTemplate.read(f"ps={tmp_path / 'ps.yaml'}"),
        ],
    )
    plain, rendered = pods_of(manifests(job(format=format))), manifests(of)
    for document in jobs_of(rendered):
        kubernetes_validate.validate(
            {"apiVersion": "batch/v1", **document}, SUPPORTED[-1], strict=True
        )
    for before, pod in zip(plain, pods_of(rendered), strict=True):
        spec, task = pod.spec, task_container(pod.spec)
        role = pod.labels["app.kubernetes.io/component"]
        assert spec["nodeSelector"] == {"disk": "slow" if role == "ps" else "fast"}
        assert spec["priorityClassName"] == "high"
        assert pod.annotations["sidecar.istio.io/inject"] == "false"
        assert pod.annotations["note"] == "a: b"
        env = {each["name"]: each for each in task["env"]}
        assert (env["NAME"]["value"], env["OTHER"]["value"]) == ("theirs", "kept")
        assert "valueFrom" in env["NODE"]
        limits = {**task["resources"]["requests"], "nvidia.com/gpu": 1}
        assert task["resources"]["limits"] == limits
        mounts = [each["mountPath"] for each in task_container(before.spec)["volumeMounts"]]
        assert [each["mountPath"] for each in task["volumeMounts"]] == [*mounts, "/cache"]
        assert [c["name"] for c in spec["containers"]][-1] == "more"
        assert ("initContainers" in spec) == ("initContainers" in before.spec)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("spec: {nodeselector: {a: b}}", "did you mean nodeSelector?"),
        ("spec: {containers: [{name: task, resource: {}}]}", "did you mean resources?"),
        ("spec: {containers: [{name: tensorflow}]}", "'tensorflow' has no image"),
        ("spec: {containers: [{image: x}]}", "`name` is missing"),
        ("spec: {containers: {name: task}}", "expected a list"),
        ("spec: task", "expected fields"),
        ("- spec", "a pod template has `metadata` or `spec`"),
        ("spec: {", "is not YAML"),
    ],
)
def test_a_wrong_pod_template_is_refused(template: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(template)
    with pytest.raises(UsageError, match=re.escape(message)):
        render(job(pod_templates=[PodTemplate.read(str(tmp_path / "pod.yaml"))]))


def test_an_evaluator_is_told_the_cluster_without_being_of_it() -> None:
    of = job(api="estimator", evaluator=True)
    assert set(of.cluster.jobs) == {"chief", "ps", "worker"}
    (pod,) = [
        pod
        for pod in pods_of(manifests(of))
        if pod.labels["app.kubernetes.io/component"] == "evaluator"
    ]
    task = task_container(pod.spec)
    assert {"name": "TASK_TYPE", "value": "evaluator"} in task["env"]
    assert not {"startupProbe", "livenessProbe", "readinessProbe"} & set(task)
    with pytest.raises(UsageError, match="--api estimator"):
        job(evaluator=True)


def test_the_stream_falls_into_its_documents() -> None:
    text = render(job())
    assert [yaml.safe_load(each) for each in files(text).values()] == parse(text)


def test_cases_of_the_users_own_join_the_published(tmp_path: Path) -> None:
    path = tmp_path / "cases.yaml"
    path.write_text("cases: [{name: small, workers: 4, ps: 2, workers_per_node: 2}]")
    assert find_case("small", known_cases(path)) == JobCase("small", 4, 2, 2)
    with pytest.raises(UsageError, match="there are 1, 2, 3, 4"):
        find_case("5", PUBLISHED)


@pytest.mark.parametrize(
    "text",
    [
        "cases: 3",
        "[",
        "cases: [{workers: 1, ps: 1}]",
        "cases: [{name: a, workers: none, ps: 1}]",
        "cases: [{name: a, workers: 1, ps: 1, wrokers: 2}]",
        "cases: [{name: 1, workers: 1, ps: 1}]",
    ],
)
def test_a_wrong_file_of_cases_is_refused_with_its_name(text: str, tmp_path: Path) -> None:
    (tmp_path / "cases.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"cases\.yaml"):
        known_cases(tmp_path / "cases.yaml")


def test_the_command_line_renders_what_was_asked(tensorwire: Any, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    named = ("--name", "flights", "--image", "image", "--script", "/app/train.py")
    arguments = ("--workers", "4", "--ps", "2", *named, "--", "--task={task_index}")
    done = tensorwire("k8s", "render", "--output", folder, *arguments)
    assert done.returncode == 0, done.stderr
    written = [yaml.safe_load(path.read_text()) for path in sorted(folder.iterdir())]
    assert [d["kind"] for d in written].count("Job") == 4
    (config,) = by_kind(written, "ConfigMap")
    assert '--task="$TASK_INDEX"' in config["data"]["start"]
    assert len(json.loads(config["data"]["cluster"])["worker"]) == 4


@pytest.mark.parametrize("format", FORMATS)
def test_every_task_finds_the_token_in_a_file_and_only_a_new_job_brings_a_new_one(
    format: str,
) -> None:
    for options, name, brings in [
        ({"token": "x" * 64}, "flights", 1),
        ({"own_token_secret": "theirs"}, "theirs", 0),
    ]:
        rendered = manifests(job(format=format, **options))
        secrets = by_kind(rendered, "Secret")
        assert len(secrets) == brings
        for secret in secrets:
            assert base64.b64decode(secret["data"]["token"]) == b"x" * 64
            assert secret["immutable"] is True
            kubernetes_validate.validate(secret, SUPPORTED[-1], strict=True)
        for pod in pods_of(rendered):
            (volume,) = [v for v in pod.spec["volumes"] if v["name"] == "token"]
            assert volume["secret"]["secretName"] == name
            (mount,) = [m for m in pod.task_container["volumeMounts"] if m["name"] == "token"]
            file = {"name": "TENSORWIRE_TOKEN_FILE", "value": f"{mount['mountPath']}/token"}
            assert file in pod.task_container["env"]
    for pod in pods_of(manifests(job(format=format))):
        assert "token" not in {v["name"] for v in pod.spec["volumes"]}
        assert "TENSORWIRE_TOKEN_FILE" not in {e["name"] for e in pod.task_container["env"]}


def test_a_job_that_grows_names_all_its_workers_and_starts_the_first() -> None:
    of = job(workers=3, ps=2, max_workers=8)
    rendered = manifests(of)
    for document in rendered:
        kubernetes_validate.validate(document, SUPPORTED[-1], strict=True)
    workers = [each for each in jobs_of(rendered) if "worker" in each["metadata"]["name"]]
    sizes = [(each["spec"]["completions"], each["spec"].get("suspend")) for each in workers]
    assert sizes == [(3, None), (1, True)]
    most = [each["metadata"]["annotations"]["tensorwire/most-tasks"] for each in workers]
    assert most == ["4", "4"]
    assert len(of.cluster.addresses("worker")) == 8 and of.tasks == 5
    assert "--device-filters auto" in of.command


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"workers": 4, "max_workers": 3}, "less than the 4 workers"),
        ({"max_workers": 8, "format": "jobset"}, "--format plain"),
        ({"max_workers": 8, "api": "strategy"}, "fixed number of workers"),
    ],
)
def test_a_job_that_cannot_grow_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        job(**options)
