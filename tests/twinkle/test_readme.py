"""The README: its example runs, its picture is what the script draws, its lines install our packages."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NEEDS = {
    "mesh": [],
    "remote": ["mesh"],
    "data": ["mesh", "remote"],
    "ray": ["mesh", "remote"],
    "engines": ["mesh", "remote", "data", "ray"],
}


def _example() -> str:
    (first, *_) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    return str(first)


def _shown() -> str:
    (shown,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    return str(shown)


LINE = re.compile(r" ?(\d+)  reward (\d\.\d\d)  (?:'.*'|\".*\")")


def _check(printed: str) -> None:
    """Its lines have the form of the shown ones, and the model learns what the reward asks for."""
    found = [match for line in printed.splitlines() if (match := LINE.fullmatch(line))]
    assert [int(match[1]) for match in found] == list(range(12)), printed
    first, *_, last = [float(match[2]) for match in found]
    assert last > 0.5 > 0.2 > first, printed


def test_example_is_short() -> None:
    assert len([line for line in _example().splitlines() if line.strip()]) <= 30
    assert all(LINE.fullmatch(line) for line in _shown().splitlines())


@pytest.mark.ray
def test_example_runs(joining: dict[str, str], tmp_path: Path) -> None:
    program = tmp_path / "example.py"
    program.write_text(_example())
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=600, check=False, env=joining
    )
    assert done.returncode == 0, done.stderr
    _check(done.stdout)


@pytest.mark.slow
def test_example_does_the_same_in_one_process(tmp_path: Path) -> None:
    program = tmp_path / "example.py"
    program.write_text(_example().replace('"ray"', '"local"'))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    _check(done.stdout)


def test_links_and_pictures_lead_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if not link.startswith("https://")]
    pictures = re.findall(r"src(?:set)?=\"([^\"]+)\"", README)
    assert links and len(pictures) == 2
    assert all((ROOT / link).exists() for link in (*links, *pictures))


def test_the_counts_of_lines_are_true() -> None:
    """They may be up to a quarter too large, so that not each change of the code is one of the page."""
    script = runpy.run_path(str(ROOT / "tools" / "lines.py"))
    real = {name: script["lines"](folder) for name, folder in script["SOURCES"].items()}
    real.update(zip(("all", "calls", "weights"), script["ours"](), strict=True))
    written = script["counted"](README)
    assert written.keys() == real.keys()
    wrong = {name: (number, real[name]) for name, number in written.items() if not 1 <= number / real[name] <= 1.25}
    assert wrong == {}, "run python tools/lines.py"


def test_the_tree_of_the_house_is_that_of_the_packages() -> None:
    script = runpy.run_path(str(ROOT / "tools" / "lines.py"))
    assert script["tree"]() in script["HOUSE"].read_text(encoding="utf-8"), "run python tools/lines.py"


def test_the_picture_is_what_the_script_draws(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "examples" / "draw_loop.py", tmp_path], check=True, timeout=120)
    for name in ("loop-light.svg", "loop-dark.svg"):
        assert (tmp_path / name).read_text() == (ROOT / "docs" / "pictures" / name).read_text()


@pytest.mark.parametrize("name", NEEDS)
def test_each_package_is_installed_with_those_of_ours_that_it_needs(name: str) -> None:
    text = (ROOT / "packages" / f"twinkle-{name}" / "README.md").read_text(encoding="utf-8")
    lines = _installs(text)
    assert len(lines) == 3
    for line in lines:
        named = re.findall(r"(?:packages/twinkle-|dist/twinkle_)(\w+?)(?=[-\s\"]|$)", line)
        assert named == [*NEEDS[name], name], line


def test_no_line_installs_a_name_of_the_index() -> None:
    for path in (ROOT / "README.md", *ROOT.glob("packages/*/README.md"), *(ROOT / "docs").rglob("*.md")):
        for line in _installs(path.read_text(encoding="utf-8")):
            for word in re.findall(r"\"[^\"]+\"|\S+", line):
                if "twinkle" in word:
                    assert re.search(r" @ file:|^\"?\./|\.whl$|^\"\$REPO#", word), f"{path}: {line}"


def test_no_error_text_installs_a_name_of_ours_from_the_index() -> None:
    for folder in (ROOT / "src", *ROOT.glob("packages/*/src")):
        for path in folder.rglob("*.py"):
            assert not re.search(r"pip install [^\n]*(?:twinkle|_PROVIDERS)", path.read_text(encoding="utf-8")), path


def _installs(text: str) -> list[str]:
    """The lines of code blocks that install, with their continuations, without comments."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line.partition("    #")[0].strip() for line in lines if line.startswith("pip install")]
