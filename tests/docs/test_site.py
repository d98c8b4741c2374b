"""The site builds without a network and without a warning, and each public name has its place in the reference."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("twinkle_mesh", "twinkle_remote", "twinkle_data", "twinkle_ray", "twinkle_http", "twinkle.engines")
SCHEME = re.compile(r"[a-z]+:")
OUTSIDE = re.compile(r'<(?:script|img|iframe)[^>]*? src="https?://|<link[^>]*? rel="stylesheet"[^>]*? href="https?://')


class Page(HTMLParser):
    """What the tests ask of a built page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids = set[str]()
        self.links: list[str] = []
        self.contents: list[str] = []
        self.pictures: list[tuple[str, str]] = []
        self._depth = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element; `contents` has the links of the navigation at the left, `links` all others."""
        values = {name: value or "" for name, value in attrs}
        self.ids.add(values.get("id", ""))
        if tag == "div" and (self._depth or "sidebar-tree" in values.get("class", "").split()):
            self._depth += 1
        elif tag == "img":
            self.pictures.append((values.get("src", ""), values.get("alt", "")))
        elif tag == "a" and values.get("href"):
            (self.contents if self._depth else self.links).append(values["href"])

    def handle_endtag(self, tag: str) -> None:
        """Note the end of the navigation."""
        self._depth -= tag == "div" and self._depth > 0


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    """Each page of the site by its file."""
    return {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    out = tmp_path_factory.mktemp("site")
    options = ["-W", "--keep-going", "-q", "-d", str(out / "trees")]
    command = [sys.executable, "-m", "sphinx", *options, str(ROOT / "docs"), str(out / "html")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return out / "html"


def test_pages_are_few() -> None:
    pages = {path.stem for path in (ROOT / "docs").rglob("*.md")} - {"api"}
    assert len(pages) <= 30


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_each_public_name_is_in_the_reference(site: Path, package: str) -> None:
    page = (site / "api.html").read_text(encoding="utf-8")
    ids = set(re.findall(r'id="([\w.]+)"', page))
    assert [name for name in import_module(package).__all__ if f"{package}.{name}" not in ids] == []


@pytest.mark.slow
def test_each_name_of_twinkle_leads_to_its_reference(site: Path) -> None:
    page = (site / "api.html").read_text(encoding="utf-8")
    linked = set(re.findall(r'href="#twinkle_\w+\.(\w+)"', page))
    assert [name for name in import_module("twinkle").__all__ if name not in linked] == []


@pytest.mark.slow
def test_links_within_the_site_lead_somewhere(pages: dict[Path, Page]) -> None:
    dead = []
    for path, page in pages.items():
        for link in (link for link in page.links + page.contents if not SCHEME.match(link)):
            name, _, anchor = unquote(link).partition("#")
            target = (path.parent / name.partition("?")[0]).resolve() if name else path
            if not target.is_file() or (anchor and target in pages and anchor not in pages[target].ids):
                dead.append(f"{path.name}: {link}")
    assert dead == []


@pytest.mark.slow
def test_each_picture_is_there_and_says_what_it_shows(pages: dict[Path, Page]) -> None:
    pictures = [(path, *picture) for path, page in pages.items() for picture in page.pictures]
    assert pictures
    assert [(path.name, source) for path, source, text in pictures if not text] == []
    local = [(path, source) for path, source, _ in pictures if not SCHEME.match(source)]
    assert [(path.name, source) for path, source in local if not (path.parent / unquote(source)).is_file()] == []


@pytest.mark.slow
def test_the_table_of_contents_reaches_each_page(site: Path, pages: dict[Path, Page]) -> None:
    reached = {(site / link.partition("#")[0]).resolve() for link in pages[site / "index.html"].contents}
    assert set(pages) - reached == {site / "index.html", site / "search.html"}


@pytest.mark.slow
def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    assert [page.name for page in site.rglob("*.html") if OUTSIDE.search(page.read_text(encoding="utf-8"))] == []
