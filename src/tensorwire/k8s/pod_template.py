"""A user's partial pod template, which is merged into the pods of a job.

Lists of Kubernetes that have a merge key (containers, volumes, environment variables, …) are merged
by it, all others are replaced, as `kubectl patch` does. The containers of a job are `task` and,
beside serving tasks in the format "plain", `keeper`; a template has them under `spec.containers`,
wherever they are.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tensorwire.errors import UsageError

ROLES = ("ps", "worker", "chief", "evaluator")

_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
_LIST = re.compile(r"[Ll]ist\[(\w+)\]")


@dataclass(frozen=True)
class PodTemplate:
    """What is merged into the pods of one role, or of all if it is None."""

    role: str | None
    content: Mapping[str, Any]
    source: str
    """For messages: the option that gave it."""

    @staticmethod
    def read(argument: str) -> PodTemplate:
        """Reads FILE or ROLE=FILE. Raises UsageError, which names what is wrong in the file."""
        said, separator, rest = argument.partition("=")
        role, path = (said, rest) if separator and said in ROLES else (None, argument)
        try:
            content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            form = f" (give FILE, or ROLE=FILE with a role of {', '.join(ROLES)})"
            raise UsageError(f"cannot read {path}: {error.strerror}{form}") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
        if not isinstance(content, dict):
            raise UsageError(f"{path}: a pod template has `metadata` or `spec`")
        _check(content, "V1PodTemplateSpec", path)
        return PodTemplate(role, content, path)

    def merged_into(self, pod: dict[str, Any]) -> dict[str, Any]:
        """The pod with this template merged into it.

        Raises:
            UsageError: it has a container without an image that is none of the pod's.
        """
        content = dict(self.content)
        if spec := dict(content.get("spec") or {}):
            # A serving task is an init container that goes on.
            serving = {each["name"] for each in pod["spec"].get("initContainers", ())}
            given = spec.get("containers") or ()
            if moved := [each for each in given if each["name"] in serving]:
                spec["containers"] = [each for each in given if each not in moved]
                spec["initContainers"] = [*(spec.get("initContainers") or ()), *moved]
            content["spec"] = spec
        merged: dict[str, Any] = _merged(pod, content)
        for name in ("initContainers", "containers"):
            for container in merged["spec"].get(name, ()):
                if not container.get("image"):
                    raise UsageError(
                        f"{self.source}: container {container['name']!r} has no image; the "
                        "container of the training script is called `task`"
                    )
        return merged


def _merged(ours: Any, theirs: Any, name: str = "") -> Any:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        both = {key: _merged(ours.get(key), value, key) for key, value in theirs.items()}
        return {key: value for key, value in {**ours, **both}.items() if value is not None}
    key = _MERGE_KEYS.get(name)
    if key is None or not isinstance(ours, list) or not isinstance(theirs, list):
        return theirs
    patches = {each[key]: each for each in theirs}
    kept = [_merged(each, patches.pop(each[key], {})) for each in ours]
    return [*kept, *patches.values()]


def _check(value: Any, kind: str, where: str) -> None:
    """Raises UsageError if a field is none of Kubernetes, which would drop it without a word."""
    from kubernetes import client

    if value is None:
        return
    if listed := _LIST.fullmatch(kind):
        if not isinstance(value, list):
            raise UsageError(f"{where}: expected a list")
        key = _MERGE_KEYS.get(where.rpartition(".")[2])
        for number, each in enumerate(value):
            _check(each, listed[1], f"{where}[{number}]")
            if key is not None and (not isinstance(each, dict) or key not in each):
                raise UsageError(f"{where}[{number}]: `{key}` is missing")
        return
    model = getattr(client, kind, None)
    if model is None:
        return
    if not isinstance(value, dict):
        raise UsageError(f"{where}: expected fields, such as {_some(model)}")
    kinds = {field: model.openapi_types[name] for name, field in model.attribute_map.items()}
    for field, content in value.items():
        if field not in kinds:
            near = difflib.get_close_matches(str(field), kinds, n=1)
            hint = f": did you mean {near[0]}?" if near else f"; it takes {_some(model)}, …"
            raise UsageError(f"{where}: there is no field {field!r}{hint}")
        separator = ": " if kind == "V1PodTemplateSpec" else "."
        _check(content, kinds[field], f"{where}{separator}{field}")


def _some(model: Any) -> str:
    fields: Sequence[str] = sorted(model.attribute_map.values())
    return ", ".join(fields[:3])
