"""A release: one version in all that names it, and a page with the versions that are declared and locked."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT, *sorted((ROOT / "packages").iterdir()))
ELSEWHERE = {"vllm"}  # a table of its own


def _project(folder: Path) -> dict[str, object]:
    found: dict[str, object] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def _required(folder: Path) -> list[str]:
    """All that a distribution and its extras require."""
    project = _project(folder)
    needs, extras = project["dependencies"], project.get("optional-dependencies", {})
    assert isinstance(needs, list) and isinstance(extras, dict)
    return [*needs, *(one for more in extras.values() for one in more)]


def _copy(to: Path) -> Path:
    """What a release writes to, and the tool."""
    for folder in FOLDERS:
        there = to / folder.relative_to(ROOT)
        [module] = folder.glob("src/*/__init__.py")
        for path in (folder / "pyproject.toml", folder / "CHANGELOG.md", module):
            target = there / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    (to / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "release.py", to / "tools")
    return to


def _release(copy: Path, *version: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(copy / "tools" / "release.py"), *version]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_all_have_the_version_of_today(tmp_path: Path) -> None:
    copy = _copy(tmp_path)
    assert _release(copy, str(_project(ROOT)["version"])).returncode == 0
    for path in (path for path in copy.rglob("*") if path.is_file()):
        assert path.read_bytes() == (ROOT / path.relative_to(copy)).read_bytes(), path


def test_a_release_writes_its_version_into_all_packages(tmp_path: Path) -> None:
    copy = _copy(tmp_path)
    log = copy / "CHANGELOG.md"
    before = re.sub(r"\n## Unreleased\n.*?(?=\n## )", "", log.read_text(), flags=re.DOTALL)
    log.write_text(before.replace("\n## ", "\n## Unreleased\n\n- New.\n\n## ", 1))
    assert _release(copy, "0.7.1").returncode == 0
    assert log.read_text().startswith("# Changelog\n\n## 0.7.1\n\n- New.\n\n## 0.")
    for folder in FOLDERS:
        there = copy / folder.relative_to(ROOT)
        [module] = there.glob("src/*/__init__.py")
        assert _project(there)["version"] == "0.7.1"
        assert '\n__version__ = "0.7.1"\n' in module.read_text()
        assert (there / "CHANGELOG.md").read_text().startswith("# Changelog\n\n## 0.7.1\n\n- ")
        siblings = [
            one for one in _required(there) if one.startswith("twinkle-") and not one.startswith("twinkle-all[")
        ]
        assert all(one.endswith(">=0.7.1,<0.8") for one in siblings), siblings
        others = [one for one in _required(there) if not one.startswith("twinkle-")]
        assert others == [one for one in _required(folder) if not one.startswith("twinkle-")]


def test_the_page_on_installing_has_the_versions_that_are_declared_and_locked() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\w-]+) \| [^|]+ \| ([\d.]+)(?:, below ([\d.]+))? \| ([\d.]+) \|", page, re.MULTILINE)
    declared = {
        match.group("name", "low", "below")
        for folder in FOLDERS
        for one in _required(folder)
        if (match := re.match(r"(?P<name>[\w-]+)>=(?P<low>[\d.]+)(?:,<(?P<below>[\d.]+))?", one))
    }
    declared = {(name, low, below or "") for name, low, below in declared if not name.startswith("twinkle")}
    table = {(name, low, below) for name, low, below, _ in rows if name != "Python"}
    engines = ("torch", "2.12", "")  # an engine's torch is that of its workers
    assert table == {one for one in declared if one[0] not in ELSEWHERE} - {engines}
    packages = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]
    locked = {(package["name"], package.get("version")) for package in packages}
    assert {(name, newest) for name, *_, newest in rows if name != "Python"} <= locked
