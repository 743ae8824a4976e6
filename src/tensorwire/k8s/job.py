"""A job: its options, what is wrong with them, and the names, environment and command of its tasks.

Templates of manifests use the attributes of a `Job`.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from tensorwire.cluster import (
    ENDPOINT_MAP_NAME,
    ENDPOINT_MAP_VARIABLE,
    GRPCPP,
    PROTOCOLS,
    ClusterSpec,
)
from tensorwire.engine import data_port
from tensorwire.errors import UsageError
from tensorwire.k8s import layout as layouts
from tensorwire.k8s.layout import Group
from tensorwire.k8s.pod_template import PodTemplate
from tensorwire.options import option, required
from tensorwire.placement.plan import STRATEGIES
from tensorwire.plugin.rewrites import WIRE_DTYPES

CONFIG_FOLDER = "/etc/tensorwire"
"""The folder in a container with the files of the job's ConfigMap."""
TOKEN_FOLDER = "/etc/tensorwire-token"
"""The folder in a container with the file `token` of the job's Secret."""
HOST_FOLDER = "/run/tensorwire"
"""The folder in a container where the pods of one node meet, with shared memory."""

FORMATS = ("plain", "jobset", "trainjob")
SCHEDULINGS = ("affinity", "labels")
ROLES_THAT_DECIDE: Mapping[str, tuple[str, ...]] = {
    "server": ("worker",),
    "estimator": ("chief", "worker", "evaluator"),
    "strategy": ("chief",),
}
"""Roles whose end ends the job, by the script's API. All other roles serve these."""

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LONGEST_NAME = 40  # a pod's host name, with its suffix, must not exceed 63 characters
_IMAGE = re.compile(r"[A-Za-z0-9][-._:/@A-Za-z0-9]*")
_FILE = re.compile(r"[A-Za-z0-9][-._A-Za-z0-9]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WHO_A_TASK_IS = (
    *("CLUSTER", "FIRST_TASK_INDEX", "JOB_COMPLETION_INDEX"),
    *("TASK_INDEX", "TASK_TYPE", "TF_CONFIG"),
)
_MOST_THREADS = {"ps": 8, "worker": 2, "chief": 2, "evaluator": 2}
_LARGEST_SCRIPT_BYTES = 900_000  # the limit of a ConfigMap is 1 MiB
# Kubernetes' format of memory quantities, with decimal and binary suffixes.
_MEMORY = re.compile(r"[1-9][0-9]*(\.[0-9]+)?([kMGTPE]|[KMGTPE]i)?")


@dataclass(frozen=True)
class Resources:
    """Limits of a task: CPU as "2" or "300m", memory as "4Gi". Requests equal limits."""

    cpu: str
    memory: str

    def __post_init__(self) -> None:
        if self.cores <= 0:
            raise UsageError(f"invalid CPU quantity {self.cpu!r}: write 2, 0.5 or 500m")
        if not _MEMORY.fullmatch(self.memory):
            raise UsageError(f"invalid memory quantity {self.memory!r}: write 4Gi or 512Mi")

    @property
    def cores(self) -> float:
        """The CPU limit in cores; 0 if `cpu` is not a quantity."""
        number, thousandth = self.cpu.removesuffix("m"), self.cpu.endswith("m")
        if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", number):
            return 0.0
        return float(number) / (1000 if thousandth else 1)


@dataclass(frozen=True)
class Script:
    """The training script: a file of the image, or a file that is stored with the job."""

    path: str
    """Path in the container."""
    text: str | None = None

    @property
    def file_name(self) -> str:
        return Path(self.path).name

    @staticmethod
    def named(argument: str, *, has_image: bool = True) -> Script:
        """With an image, an absolute path is a path in the image. Any other file is read here and
        stored in the ConfigMap.
        """
        if has_image and argument.startswith("/"):
            return Script(argument)
        path = Path(argument)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise UsageError(
                f"cannot read the script {argument}: {reason} (for a file of the image, give its "
                "absolute path)"
            ) from None
        if not _FILE.fullmatch(path.name):
            raise UsageError(
                f"{path.name}: a script's name may contain only letters, digits, -, _ and ."
            )
        if len(text.encode()) > _LARGEST_SCRIPT_BYTES:
            raise UsageError(
                f"{argument} is too large for a ConfigMap: put it into the image and give its "
                "absolute path"
            )
        return Script(f"{CONFIG_FOLDER}/{path.name}", text)


def _pairs(name: str, form: str, help: str) -> Any:
    """An option for a mapping: given once for each pair, in a form such as NAME=VALUE."""
    separator = "=" if "=" in form else ":"

    def parse(said: Sequence[str]) -> dict[str, str]:
        pairs = {}
        for each in said:
            key, found, value = each.partition(separator)
            if not found:
                raise UsageError(f"{name} {each}: give {form}")
            pairs[key] = value
        return pairs

    return option({}, help, name=name, metavar=form, repeated=True, parse=parse)


@dataclass(frozen=True)
class Job:
    """A ps/worker job on Kubernetes. The constructor raises UsageError for invalid settings."""

    name: str = option(..., "Name of the job, and prefix of all its objects.")
    image: str = option(..., "Container image with tensorwire and TensorFlow.")
    script: Script = option(
        ...,
        "Training script: a local file, which is stored with the job, or an absolute path in "
        "the image.",
        parse=Script.named,
    )
    workers: int = required()
    ps: int = required()
    max_workers: int | None = option(
        None,
        "Workers that the job may have: `k8s scale` changes how many run. For scripts with a "
        "WorkQueue.  [default: as many as run]",
        least=1,
    )
    case: str | None = None
    wanted_workers_per_node: int | None = option(
        None, "[default: the case's]", name="--workers-per-node", least=1
    )
    layout: str = option(
        layouts.COLOCATED,
        "colocated: workers and one ps on each node; isolated: on different nodes.",
        choices=layouts.LAYOUTS,
    )
    shared_memory: bool = option(
        False,
        "With --layout colocated: pods of a node share memory. They mount a directory of the "
        "node (hostPath), which the namespace has to allow.",
    )
    scheduling: str = option(
        SCHEDULINGS[0],
        "affinity: by pod affinity; labels: on nodes that `k8s label` has labelled.",
        choices=SCHEDULINGS,
    )
    format: str = option(
        FORMATS[0],
        "plain works on any cluster; jobset needs JobSet's controller, trainjob Kubeflow "
        "Trainer 2.",
        choices=FORMATS,
    )
    queue: str | None = option(
        None, "A LocalQueue of Kueue in which the job waits (--format jobset)."
    )
    volcano_queue: str | None = option(
        None, "A queue of Volcano, which starts all tasks of the job or none."
    )
    api: str = option(
        "server",
        "API of the script: tf.train.Server, tf.estimator or ParameterServerStrategy; the last "
        "two get a chief.",
        choices=tuple(ROLES_THAT_DECIDE),
    )
    evaluator: bool = option(
        False, "With --api estimator: one more task, which evaluates checkpoints."
    )
    protocol: str = option(
        GRPCPP, "Protocol of the job; overrides the script's.", choices=PROTOCOLS
    )
    tensor_fuse: bool = option(False, "Send small tensors together, as in `tensorwire run`.")
    exact_rewrites: bool = option(
        False, "Send and compute less with the same results, as in `tensorwire run`."
    )
    wire_dtype: str | None = option(
        None, "Send floats of steps in 16 bits, as in `tensorwire run`.", choices=WIRE_DTYPES
    )
    placement: str = option(
        "round_robin", "Where variables go, as in `tensorwire run`.", choices=tuple(STRATEGIES)
    )
    keep_whole: Sequence[str] = option(
        (),
        "Variable name or pattern that --placement balanced does not split.",
        metavar="NAME",
        repeated=True,
    )
    worker_cpu: str = option("300m", "CPU of each worker.")
    worker_memory: str = option("4Gi")
    ps_cpu: str = option("2", "CPU of each ps.")
    ps_memory: str = option("4Gi")
    grpc_port: int = option(2222, least=1, most=65535)
    metrics_port: int = option(9100, least=1, most=65535)
    metrics_from: str | None = option(
        None,
        "Namespace whose pods may read the tasks' metrics, such as Prometheus'; '*': whoever "
        "reaches the tasks.  [default: the job's own pods]",
        metavar="NAMESPACE",
    )
    retries: int = option(3, "Restarts of a worker before the job fails.", least=0)
    environment: Mapping[str, str] = _pairs(
        "--env", "NAME=VALUE", "Environment variable of every task."
    )
    claims: Mapping[str, str] = _pairs(
        "--claim",
        "CLAIM:/PATH",
        "A PersistentVolumeClaim that every task mounts, for data or checkpoints.",
    )
    pod_templates: Sequence[PodTemplate] = option(
        (),
        "A part of a pod (YAML: metadata, spec) that is merged into every pod, or into those of a "
        "role: limits such as nvidia.com/gpu, node selector, tolerations, volumes, …; the "
        "container is called `task`.",
        name="--pod-template",
        metavar="[ROLE=]FILE",
        repeated=True,
        parse=lambda said: tuple(map(PodTemplate.read, said)),
    )
    annotations: Mapping[str, str] = _pairs(
        "--annotation", "NAME=VALUE", "Annotation of every pod."
    )
    pull_secret: str | None = option(None, "Secret for pulling the image.")
    service_account: str | None = option(
        None, "An existing service account that may list Jobs, if you may not create one."
    )
    own_token_secret: str | None = option(
        None,
        "An existing Secret with the job's token under `token`.  [default: a new Secret "
        "with a new token]",
        name="--token-secret",
        metavar="SECRET",
    )
    token: str | None = field(default=None, repr=False)
    """The job token, for a Secret in the manifests; instead of `own_token_secret`."""
    namespace: str | None = None
    """None: the namespace of the user's kubeconfig."""
    arguments: Sequence[str] = option((), name="arguments", metavar="[-- ARGUMENTS]...")
    """The script's arguments; {task_index} and others are replaced, see `command`."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.name) > _LONGEST_NAME:
            raise UsageError(
                f"the name {self.name!r} is not a valid Service name: use lower-case letters, "
                f"digits and -, beginning with a letter, at most {_LONGEST_NAME} characters"
            )
        if not _IMAGE.fullmatch(self.image):
            raise UsageError(f"{self.image!r} is not the name of an image: write REGISTRY/NAME:TAG")
        if self.workers < 1 or self.ps < 1:
            raise UsageError("a job has at least one worker and one ps")
        if self.max_workers is not None:
            if self.max_workers < self.workers:
                raise UsageError(
                    f"--max-workers {self.max_workers} is less than the {self.workers} workers "
                    "that the job begins with"
                )
            if self.format != "plain" or self.api == "strategy":
                raise UsageError(
                    "--max-workers needs --format plain, and --api server or estimator: other "
                    "formats and ParameterServerStrategy have a fixed number of workers"
                )
        if self.scheduling == "labels" and self.case is None:
            raise UsageError("scheduling by labels needs --case: a node's labels name the case")
        if self.queue is not None and self.format == "plain":
            raise UsageError(
                "a queue of Kueue requires --format jobset: Kueue would admit each of several Jobs "
                "separately"
            )
        if self.queue is not None and self.volcano_queue is not None:
            raise UsageError("give --queue or --volcano-queue: a job waits in one queue")
        for queue in filter(None, (self.queue, self.volcano_queue)):
            if not _NAME.fullmatch(queue):
                raise UsageError(f"{queue!r} is not a valid name of a queue")
        for variable in self.environment:
            if not _VARIABLE.fullmatch(variable):
                raise UsageError(f"{variable!r} is not a valid name of an environment variable")
            if variable in _WHO_A_TASK_IS:
                raise UsageError(
                    f"{variable} cannot be set, because it tells a pod which task it is"
                )
        if self.keep_whole and self.placement != "balanced":
            raise UsageError("--keep-whole is for --placement balanced")
        if self.shared_memory and self.layout != layouts.COLOCATED:
            raise UsageError(
                "--shared-memory is for tasks on one node: give --layout colocated, or leave it out"
            )
        if self.shared_memory and self.token_secret is None:
            raise UsageError("--shared-memory needs a job token: leave --no-token out")
        if self.evaluator and self.api != "estimator":
            raise UsageError("only tf.estimator has an evaluator: give --api estimator")
        if self.metrics_from not in (None, "*") and not _NAMESPACE.fullmatch(self.metrics_from):
            raise UsageError(
                f"--metrics-from {self.metrics_from!r}: give the name of a namespace, or '*'"
            )
        for claim, folder in self.claims.items():
            if not folder.startswith("/") or not claim:
                raise UsageError(f"claim {claim}:{folder}: give CLAIM:/ABSOLUTE/PATH")
        if self.token is not None and self.own_token_secret is not None:
            raise UsageError("a job has one token: a new one, or that of an existing Secret")
        ports = {self.grpc_port, self.data_port, self.metrics_port}
        if len(ports) < 3:
            raise UsageError(
                f"the ports for gRPC ({self.grpc_port}), data ({self.data_port}) and metrics "
                f"({self.metrics_port}) must differ"
            )
        # Both raise UsageError for what is impossible.
        assert self.workers_per_node and all(map(self.resources, self.groups))

    @property
    def token_secret(self) -> str | None:
        """The Secret that every task mounts; None if the job has no token."""
        return self.own_token_secret or (self.name if self.token is not None else None)

    @property
    def named_workers(self) -> int:
        """The number of workers in the cluster specification, running or not."""
        return self.max_workers or self.workers

    @cached_property
    def workers_per_node(self) -> int:
        return layouts.workers_per_node(
            self.layout, self.named_workers, self.ps, self.wanted_workers_per_node
        )

    @property
    def data_port(self) -> int:
        return data_port(self.grpc_port)

    @property
    def token_base64(self) -> str:
        """The token in base64, the encoding of a Secret."""
        return base64.b64encode((self.token or "").encode()).decode()

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """All groups in starting order: serving roles before deciding roles."""
        chief = layouts.split("chief", 1 if self.api != "server" else 0, 1)
        workers = layouts.split("worker", self.named_workers, self.workers_per_node)
        evaluator = layouts.split("evaluator", int(self.evaluator), 1)
        return (*layouts.split("ps", self.ps, 1), *workers, *chief, *evaluator)

    def decides(self, group: Group) -> bool:
        """True if the job runs until this group has ended."""
        return group.role in ROLES_THAT_DECIDE[self.api]

    def running(self, group: Group) -> int:
        """The number of the group's tasks that run: all but workers that may come later."""
        return group.running(self.workers) if self.is_elastic(group) else group.count

    def is_elastic(self, group: Group) -> bool:
        """True if `k8s scale` changes how many of the group's tasks run."""
        return self.max_workers is not None and group.role == "worker"

    @property
    def tasks(self) -> int:
        """The number of tasks that run."""
        return sum(map(self.running, self.groups))

    @property
    def deciding_groups(self) -> int:
        return sum(1 for group in self.groups if self.decides(group))

    def pod(self, group: Group, text: str) -> str:
        """The manifest of a group's pod with the annotations and pod templates merged into it.

        `text`: what the built-in template made. It stays as it is if nothing is merged.
        """
        templates = [each for each in self.pod_templates if each.role in (None, group.role)]
        if self.annotations:
            noted = {"metadata": {"annotations": dict(self.annotations)}}
            templates.insert(0, PodTemplate(None, noted, "--annotation"))
        if not templates:
            return text
        pod = yaml.safe_load(text)
        for template in templates:
            pod = template.merged_into(pod)
        merged: str = yaml.safe_dump(pod, sort_keys=False, allow_unicode=True)
        return merged

    def resources(self, group: Group) -> Resources:
        if group.role == "ps":
            return Resources(self.ps_cpu, self.ps_memory)
        return Resources(self.worker_cpu, self.worker_memory)

    def threads(self, group: Group) -> int:
        """Communication threads: one per core of the CPU limit, at most the engine's default.

        The engine itself would count all cores of the node, because the limit is a share of time.
        """
        return max(1, min(_MOST_THREADS[group.role], int(self.resources(group).cores)))

    def variables(self, group: Group) -> dict[str, str]:
        """The environment of a group's tasks; the user's variables override ours.

        "$" is doubled, because Kubernetes expands "$(NAME)".
        """
        variables = {
            "TASK_TYPE": group.role,
            "FIRST_TASK_INDEX": str(group.first),
            "HOME": "/tmp",
            ENDPOINT_MAP_VARIABLE: f"{CONFIG_FOLDER}/{ENDPOINT_MAP_NAME}",
            "TENSORWIRE_METRICS": f"0.0.0.0:{self.metrics_port}",
        }
        if self.token_secret is not None:
            variables["TENSORWIRE_TOKEN_FILE"] = f"{TOKEN_FOLDER}/token"
        if self.shared_memory:
            variables["TENSORWIRE_HOST_DIR"] = HOST_FOLDER
        for kind in ("PS", "WORKER"):
            variables[f"NETWORK_{kind}_CORE_NUMBER"] = str(self.threads(group))
            variables[f"{kind}_ENABLE_POLLING"] = "False"
            variables[f"{kind}_DISABLE_PIN_CORES"] = "True"
        variables |= self.environment
        return {name: value.replace("$", "$$") for name, value in variables.items()}

    def job_name(self, group: Group) -> str:
        """Name of the group's Job, or of the replicated job in a JobSet."""
        return f"{group.role}-{group.index}"

    def host(self, group: Group, member: int) -> str:
        """The host name of a task, which stays the same when its pod is replaced."""
        of_replica = "" if self.format == "plain" else "-0"
        return f"{self.name}-{self.job_name(group)}{of_replica}-{member}.{self.name}"

    @cached_property
    def cluster(self) -> ClusterSpec:
        jobs: dict[str, tuple[str, ...]] = {}
        for group in self.groups:
            if group.role == "evaluator":
                continue  # it never serves, so a session would wait for it
            hosts = tuple(
                f"{self.host(group, member)}:{self.grpc_port}" for member in range(group.count)
            )
            jobs[group.role] = (*jobs.get(group.role, ()), *hosts)
        return ClusterSpec(jobs)

    @property
    def cluster_json(self) -> str:
        """The value of "cluster" in TF_CONFIG."""
        return json.dumps(dict(self.cluster.jobs))

    @property
    def endpoint_map(self) -> str:
        lines = []
        for _, address in self.cluster.tasks():
            host = address.rpartition(":")[0]
            lines.append(f"{address}={host}:{self.data_port}\n")
        return "".join(lines)

    @property
    def command(self) -> str:
        """The shell command of a task.

        In the script's arguments, {task_index} and {task_type} are replaced by the task's values,
        and {ps_hosts}, {worker_hosts}, {ps} and {workers} by the job's values.
        """
        words = ["tensorwire", "run", "--protocol", self.protocol]
        if self.tensor_fuse:
            words.append("--tensor-fuse")
        if self.exact_rewrites:
            words.append("--exact-rewrites")
        if self.wire_dtype:
            words += ["--wire-dtype", self.wire_dtype]
        if self.placement != "round_robin":
            words += ["--placement", self.placement]
        if self.max_workers is not None:
            # A session without filters waits for the workers that do not run.
            words += ["--device-filters", "auto"]
        for name in self.keep_whole:
            words += ["--keep-whole", name]
        words.append(self.script.path)
        return " ".join([*map(shlex.quote, words), *map(self._word, self.arguments)])

    def _word(self, argument: str) -> str:
        of_job = {
            "{ps_hosts}": ",".join(self.cluster.addresses("ps").values()),
            "{worker_hosts}": ",".join(self.cluster.addresses("worker").values()),
            "{ps}": str(self.ps),
            "{workers}": str(self.workers),
        }
        of_task = {"{task_index}": '"$TASK_INDEX"', "{task_type}": '"$TASK_TYPE"'}
        for name, value in of_job.items():
            argument = argument.replace(name, value)
        parts = re.split(r"(\{task_index\}|\{task_type\})", argument)
        return "".join(of_task.get(part) or shlex.quote(part) for part in parts if part) or "''"
