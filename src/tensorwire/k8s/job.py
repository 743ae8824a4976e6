"""A job as it runs: the tasks of a spec, and the names, the environment and the command of each."""

from __future__ import annotations

import base64
import json
import re
import shlex
from dataclasses import dataclass
from functools import cached_property

import yaml

from tensorwire.cluster import ENDPOINT_MAP_NAME, ENDPOINT_MAP_VARIABLE, ClusterSpec
from tensorwire.k8s import layout as layouts
from tensorwire.k8s.layout import Group
from tensorwire.k8s.pod_template import PodTemplate
from tensorwire.k8s.spec import CONFIG_FOLDER, ROLES_THAT_DECIDE, JobSpec, Resources

TOKEN_FOLDER = "/etc/tensorwire-token"
"""The folder in a container with the file `token` of the job's Secret."""
HOST_FOLDER = "/run/tensorwire"
"""The folder in a container where the pods of one node meet, with shared memory."""

_MOST_THREADS = {"ps": 8, "worker": 2, "chief": 2, "evaluator": 2}


@dataclass(frozen=True)
class Job(JobSpec):
    """A ps/worker job on Kubernetes; templates of manifests use its attributes."""

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
        return self._resources[group.role == "ps"]

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
        words = ["tensorwire", "run"]
        if self.protocol:
            words += ["--protocol", self.protocol]
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
