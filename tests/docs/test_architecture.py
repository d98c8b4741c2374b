"""What the page on the architecture names is there, and it names every folder."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "architecture.md", ROOT / "HOUSE.md", ROOT / "docs/concepts/a_call_in_one_file.md"]
HOMES = {
    "twinkle_mesh": ROOT / "packages/twinkle-mesh/src",
    "twinkle_remote": ROOT / "packages/twinkle-remote/src",
    "twinkle_data": ROOT / "packages/twinkle-data/src",
    "twinkle_ray": ROOT / "packages/twinkle-ray/src",
    "twinkle_http": ROOT / "packages/twinkle-http/src",
    "twinkle_engines": ROOT / "packages/twinkle-engines/src",
    "twinkle": ROOT / "src",
}
NAMED = re.compile(r"`((?:twinkle(?:_\w+)?|tests|benchmarks|docs|examples)/[\w./-]*?)(?::(\w+))?`")


def located(name: str) -> Path:
    return HOMES.get(name.partition("/")[0], ROOT) / name


def listed() -> list[str]:
    """Return the folders of the tree, below their packages' src."""
    tree = PAGES[0].read_text(encoding="utf-8").partition("```text\n")[2].partition("```")[0]
    folders: list[str] = []
    package = ""
    for line in tree.splitlines():
        name = line.split()[0].rstrip("/")
        if line.startswith(" "):
            folders.append(f"{package}/{name}")
        else:
            package = name
            folders.append(package)
    return folders


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_what_is_named_is_there(page: Path) -> None:
    found = NAMED.findall(page.read_text(encoding="utf-8"))
    for name, symbol in found:
        path = located(name)
        assert path.exists(), name
        if symbol:
            defined = {getattr(node, "name", "") for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))}
            assert symbol in defined, f"{name}:{symbol}"


def test_the_tree_lists_every_folder_and_no_other() -> None:
    folders = {
        path.parent.relative_to(home).as_posix()
        for package, home in HOMES.items()
        for path in (home / package).rglob("__init__.py")
    }
    assert sorted(listed()) == sorted(folders)


def test_links_lead_somewhere() -> None:
    for page in (*PAGES, ROOT / "CONTRIBUTING.md"):
        for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
