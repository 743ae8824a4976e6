"""Links in the documents lead to files and headings that exist."""

import re
from pathlib import Path

import pytest

from tensorwire.settings import OLD, SETTINGS

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The headings' anchors, as GitHub makes them."""
    found = set()
    for line in page.read_text().splitlines():
        if line.startswith("#"):
            words = re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower())
            found.add(words.replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_to_what_exists(page: Path) -> None:
    for link in _LINK.findall(_CODE.sub("", page.read_text())):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_the_pages_that_errors_name_exist() -> None:
    named = re.compile(r'page="([\w/.-]+?\.md)(?:#([\w-]+))?"')
    found = [
        (file.name, *match)
        for file in (ROOT / "src").rglob("*.py")
        for match in named.findall(file.read_text())
    ]
    assert len(found) > 5
    for file, page, anchor in found:
        assert (ROOT / page).exists(), (file, page)
        assert not anchor or anchor in anchors(ROOT / page), (file, page, anchor)


# Variables that tensorwire sets for its own processes, and that tests set for the simulation.
_INTERNAL = re.compile(r"TENSORWIRE_(RUN_|DRY_RUN|LAB$|RUNTIME|SERVER|SIMULATE_)|.*_$")


def test_every_environment_variable_is_in_the_settings() -> None:
    quoted = re.compile(r'"((?:TENSORWIRE|NETWORK|PS|WORKER)_[A-Z_0-9]+)"')
    files = [
        path for top in ("src", "native") for kind in ("py", "cc", "h")
        for path in (ROOT / top).rglob(f"*.{kind}")
    ]  # fmt: skip
    read = {name for path in files for name in quoted.findall(path.read_text())}
    wanted = {name for name in read if not _INTERNAL.match(name)} - set(OLD)
    assert len(wanted) > 15
    documented = set(re.findall(r"`([A-Z_]+)`", (ROOT / "docs/settings.md").read_text()))
    assert wanted - documented == set()
    assert {name for name in documented if name.startswith("TENSORWIRE_")} == set(SETTINGS)
    of_grpcpp = {name for name in documented if re.match("(NETWORK|PS|WORKER)_", name)}
    assert len(SETTINGS) + len(of_grpcpp) <= 20


def test_the_readme_is_one_screen_or_two() -> None:
    assert len((ROOT / "README.md").read_text().split()) < 800
