"""Renders a job as manifests, from Jinja2 templates, each of which a user may replace."""

from __future__ import annotations

import json
import re
import shutil
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import yaml

from tensorwire.errors import TensorwireError, UsageError
from tensorwire.k8s.job import Job
from tensorwire.k8s.layout import Group, group_labels

TEMPLATES = Path(__file__).parent / "templates"

Manifest = dict[str, Any]


def render(job: Job, templates: Path | None = None) -> str:
    """The job's manifests as one stream of YAML documents.

    Args:
        templates: a folder whose files replace the built-in files of the same name.

    Raises:
        TensorwireError: a template is wrong; the message names file and line.
    """
    if templates is not None and not templates.is_dir():
        raise UsageError(f"there is no folder {templates} with templates")
    folders = [*([templates] if templates else []), TEMPLATES]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["quote"] = _quote
    environment.filters["merged"] = lambda text, job, group: job.pod(group, text)

    def node_labels_of(group: Group) -> Mapping[str, str]:
        return group_labels(job.layout, job.case, group) if job.case is not None else {}

    try:
        template = environment.get_template(f"{job.format}.yaml.j2")
        text: str = template.render(job=job, node_labels_of=node_labels_of)
        return text
    except jinja2.TemplateSyntaxError as error:
        raise TensorwireError(f"{error.filename}:{error.lineno}: {error.message}") from error
    except jinja2.TemplateError as error:
        raise TensorwireError(f"{_where(error)}: {error}") from error


def parse(text: str) -> list[Manifest]:
    """The documents of a stream that `render` made.

    Raises:
        TensorwireError: a user's template produced text that is not YAML, or a document that is not
            a Kubernetes object.
    """
    try:
        documents = [d for d in yaml.load_all(text, _LOADER) if d is not None]
    except yaml.YAMLError as error:
        raise TensorwireError(
            f"the templates did not produce valid YAML: {' '.join(str(error).split())}"
        ) from error
    for document in documents:
        named = isinstance(document, dict) and isinstance(document.get("metadata"), dict)
        if not (named and document.get("kind") and document["metadata"].get("name")):
            raise TensorwireError("the templates produced a document without kind or metadata.name")
    return documents


def files(text: str) -> dict[str, str]:
    """The documents of the stream as text, with comments, by a file name each.

    Sorted names give the order of applying.

    Raises:
        TensorwireError: as `parse`.
    """
    documents = [d for d in re.split(r"^---$\n?", text, flags=re.MULTILINE) if d.strip()]
    return {
        f"{number:03d}-{each['kind'].lower()}-{each['metadata']['name']}.yaml": document
        for number, (each, document) in enumerate(zip(parse(text), documents, strict=True))
    }


def copy_templates(folder: Path) -> list[Path]:
    """Copies the built-in templates into `folder`, which must not have files of these names."""
    for path in sorted(TEMPLATES.iterdir()):
        if (folder / path.name).exists():
            raise UsageError(f"{folder / path.name} exists already: name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    return [Path(shutil.copy(path, folder)) for path in sorted(TEMPLATES.iterdir())]


# The loader in C is ten times as fast, but some builds of PyYAML lack it.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _quote(value: object) -> str:
    """The value as JSON, which is valid YAML with unambiguous types."""
    return json.dumps(value, ensure_ascii=False)


def _where(error: jinja2.TemplateError) -> str:
    """File and line of the innermost template."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{each.filename}:{each.lineno}" for each in frames if each.filename.endswith(".j2")]
    return places[-1] if places else "a template"
