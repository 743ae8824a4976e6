"""Sphinx settings of the site, which `make site` builds from the documents into build/site."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "tensorwire"
root_doc = "README"
include_patterns = [
    "*.md", "docs/*.md", "docs/*/*.md", "examples/*/README.md", "benchmarks/*.md",
]  # fmt: skip
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
]
myst_heading_anchors = 4  # the same anchors as on GitHub
default_role = "code"  # `name` in docstrings
suppress_warnings = ["misc.highlighting_failure"]  # usage lines are not shell commands
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False

html_theme = "furo"  # loads nothing from the network
html_title = "tensorwire"
html_static_path = ["site"]
html_css_files = ["site.css"]
html_copy_source = False
smartquotes = False  # keeps "--option" unchanged
html_show_copyright = False

_CONTENTS = {
    "Getting started": [
        "tutorials/first-job", "getting-started", "pages", "versions", "judges", "troubleshooting",
    ],
    "Guides": [
        "tutorials/switch", "from-deeprec", "from-tfjob", "tutorials/hot-ps",
        "../examples/hot_ps/README", "tutorials/slow-network-or-ps", "tutorials/slow-worker",
        "doctor", "placement", "planner", "metrics", "hosts", "kubernetes", "stragglers",
        "losing-a-ps", "growing-tables", "polling-and-pinning", "lab",
    ],
    "Concepts": [
        "concepts/tensor", "concepts/pushes", "concepts/shared-memory", "concepts/rewrites",
        "grpc", "faults",
    ],
    "Reference": [
        "reference/commands", "settings", "reference/records", "reference/python", "performance",
    ],
    "Policies": [
        "../SECURITY", "../RELEASING", "../CHANGELOG", "../CONTRIBUTING",
    ],
}  # fmt: skip
# Below a page of these contents.
_FOR_CONTRIBUTORS = ["../ARCHITECTURE", "decisions/README", "../benchmarks/README"]

# Pages made by tensorwire itself: title, name, and the command that makes the page from a record.
_PAGES = (
    ("bench all over links of 10 Gbit/s", "bench-all",
     ("report", "benchmarks/results/all-lab-10gbit-2.21.0.json")),
    ("doctor beside a job with one big variable", "doctor",
     ("doctor", "--record", "tests/unit/looks/one-big-variable.json")),
    ("k8s compare, case 1 of the published table", "k8s-compare",
     ("report", "benchmarks/results/k8s-compare-case1-2.21.0.json")),
)  # fmt: skip


def _make_pages(app: Sphinx, config: Any) -> None:
    """Writes these pages into a folder that Sphinx copies to the site unchanged."""
    extra = Path(app.doctreedir, "extra")
    (extra / "docs/pages").mkdir(parents=True, exist_ok=True)
    for _, name, arguments in _PAGES:
        command = [sys.executable, "-m", "tensorwire.cli.main", "--quiet", *arguments]
        page = extra / f"docs/pages/{name}.html"
        subprocess.run(
            [*command, "--report", page], cwd=app.srcdir, check=True, stdout=subprocess.DEVNULL
        )
    config.html_extra_path = [str(extra)]


def _tree(caption: str, pages: list[str]) -> str:
    lines = [f":caption: {caption}", ":hidden:", "", *pages]
    return "\n```{toctree}\n" + "\n".join(lines) + "\n```\n"


def _with_contents(app: Sphinx, name: str, source: list[str]) -> None:
    """Adds tables of contents here, because GitHub would show them as text in README.md."""
    if name == root_doc:
        for caption, pages in _CONTENTS.items():
            source[0] += _tree(caption, [f"/docs/{page}" for page in pages])
    elif name == "docs/pages":
        for title, page, arguments in _PAGES:
            source[0] += f'\n- <a href="pages/{page}.html">{title}</a>: '
            source[0] += f"`tensorwire {' '.join(arguments)} --report page.html`"
    elif name == "CONTRIBUTING":
        source[0] += _tree("Design", [f"/docs/{page}" for page in _FOR_CONTRIBUTORS])
    elif name in ("docs/decisions/README", "benchmarks/README"):
        folder = Path(app.srcdir, name).parent
        source[0] += _tree("Records", sorted(each.stem for each in folder.glob("[a-z]*.md")))


def _with_whole_names(app: Sphinx, document: Any) -> None:
    """Titles of commands: "bench transfer" says more in a list of contents than "transfer"."""
    if app.env.docname == "docs/reference/commands":
        for section in document.findall(nodes.section):
            above = section.parent
            if section["ids"][0].startswith("tensorwire-") and above["ids"][0] != "tensorwire":
                name = f"{above[0].astext()} {section[0].astext()}"
                section[0].children = [nodes.Text(name)]


def _with_code(
    app: Sphinx, what: str, name: str, of: object, options: object, lines: list[str]
) -> None:
    """Marks indented text after an empty line as code, where the docstring does not."""
    for number in reversed(range(1, len(lines) - 1)):
        before, line, after = lines[number - 1 : number + 2]
        is_marked = before.endswith("::")
        if before.strip() and before[0] != " " and not line and after.startswith("    "):
            lines[number:number] = [] if is_marked else ["", "::"]


# Attributes for keyboards and screen readers, which Sphinx and its theme lack.
_ACCESSIBLE = {
    "body": (("<pre>", '<pre tabindex="0">'),
             ('<div class="table-wrapper', '<div tabindex="0" class="table-wrapper')),
    "furo_navigation_tree": (('role="heading"', 'role="heading" aria-level="2"'),),
}  # fmt: skip


def _for_everybody(
    app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: object
) -> None:
    for part, replacements in _ACCESSIBLE.items():
        for old, new in replacements:
            if part in context:
                context[part] = context[part].replace(old, new)


def _add_index(app: Sphinx, failed: Exception | None) -> None:
    if failed is None:
        shutil.copy(Path(app.outdir, f"{root_doc}.html"), Path(app.outdir, "index.html"))


def setup(app: Sphinx) -> None:
    app.connect("config-inited", _make_pages)
    app.connect("source-read", _with_contents)
    app.connect("doctree-read", _with_whole_names, priority=100)  # before the contents are made
    app.connect("autodoc-process-docstring", _with_code, priority=100)  # before napoleon
    app.connect("html-page-context", _for_everybody, priority=900)  # after the theme
    app.connect("build-finished", _add_index)
