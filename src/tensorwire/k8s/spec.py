"""The user's description of a job: its options, and what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tensorwire.cluster import GRPCPP, PROTOCOLS
from tensorwire.engine import data_port
from tensorwire.errors import UsageError
from tensorwire.k8s import layout as layouts
from tensorwire.k8s.pod_template import PodTemplate
from tensorwire.options import option, required
from tensorwire.placement.plan import STRATEGIES
from tensorwire.plugin.rewrites import WIRE_DTYPES

CONFIG_FOLDER = "/etc/tensorwire"
"""The folder in a container with the files of the job's ConfigMap."""

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


def _pairs(option: str, said: Sequence[str], separator: str, form: str) -> dict[str, str]:
    pairs = {}
    for each in said:
        name, found, value = each.partition(separator)
        if not found:
            raise UsageError(f"{option} {each}: give {form}")
        pairs[name] = value
    return pairs


@dataclass(frozen=True)
class JobSpec:
    """What a user says of a job. The constructor raises UsageError for invalid settings."""

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
    environment: Mapping[str, str] = option(
        {},
        "Environment variable of every task.",
        name="--env",
        metavar="NAME=VALUE",
        repeated=True,
        parse=lambda said: _pairs("--env", said, "=", "NAME=VALUE"),
    )
    claims: Mapping[str, str] = option(
        {},
        "A PersistentVolumeClaim that every task mounts, for data or checkpoints.",
        name="--claim",
        metavar="CLAIM:/PATH",
        repeated=True,
        parse=lambda said: _pairs("--claim", said, ":", "CLAIM:/PATH"),
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
    annotations: Mapping[str, str] = option(
        {},
        "Annotation of every pod.",
        name="--annotation",
        metavar="NAME=VALUE",
        repeated=True,
        parse=lambda said: _pairs("--annotation", said, "=", "NAME=VALUE"),
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
        assert self.workers_per_node and self._resources

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

    @cached_property
    def _resources(self) -> Mapping[bool, Resources]:
        """By whether they are of ps."""
        return {
            True: Resources(self.ps_cpu, self.ps_memory),
            False: Resources(self.worker_cpu, self.worker_memory),
        }
