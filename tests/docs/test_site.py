"""The site builds without a network and without a warning, and each public name has its place in the reference."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("twinkle_mesh", "twinkle_remote", "twinkle_data", "twinkle_ray", "twinkle_http", "twinkle.engines")
OUTSIDE = re.compile(r'<(?:script|img|iframe)[^>]*? src="https?://|<link[^>]*? rel="stylesheet"[^>]*? href="https?://')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    out = tmp_path_factory.mktemp("site")
    options = ["-W", "--keep-going", "-q", "-d", str(out / "trees")]
    command = [sys.executable, "-m", "sphinx", *options, str(ROOT / "docs"), str(out / "html")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return out / "html"


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_each_public_name_is_in_the_reference(site: Path, package: str) -> None:
    page = (site / "api" / f"{package.partition('.')[0]}.html").read_text(encoding="utf-8")
    ids = set(re.findall(r'id="([\w.]+)"', page))
    assert [name for name in import_module(package).__all__ if f"{package}.{name}" not in ids] == []


@pytest.mark.slow
def test_each_name_of_twinkle_leads_to_its_reference(site: Path) -> None:
    page = (site / "api" / "twinkle.html").read_text(encoding="utf-8")
    linked = set(re.findall(r'href="twinkle_\w+\.html#twinkle_\w+\.(\w+)"', page))
    assert [name for name in import_module("twinkle").__all__ if name not in linked] == []


@pytest.mark.slow
def test_links_within_the_site_lead_somewhere(site: Path) -> None:
    pages = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    ids = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in pages.items()}
    dead = []
    for page, text in pages.items():
        for link in re.findall(r'<a [^>]*?href="([^"]+)"', text):
            path, _, anchor = unquote(link).partition("#")
            if re.match(r"[a-z]+:", path):
                continue
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (anchor and target in ids and anchor not in ids[target]):
                dead.append(f"{page.relative_to(site)}: {link}")
    assert dead == []


@pytest.mark.slow
def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    assert [page.name for page in site.rglob("*.html") if OUTSIDE.search(page.read_text(encoding="utf-8"))] == []
