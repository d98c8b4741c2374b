"""The programs of the pages run as they stand, and print and draw what the pages show.

The blocks of a page that begin with ```python follow one another, as a reader would type them. A block that begins with
```text output is in what they print; a file that they write is the picture of that name in docs/pictures. Blocks
that begin with ```python and another word are other libraries' code, or have a test of their own.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import twinkle
from twinkle_remote.protocol.spec import COLLECT, DISPATCH

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
ELSEWHERE = {
    "README.md": "tests/twinkle/test_readme.py",
    "docs/data.md": "tests/data/test_readme.py",
    "docs/http.md": "tests/docs/test_http.py",
    "packages/twinkle-data/README.md": "tests/data/test_readme.py",
    "packages/twinkle-engines/README.md": "tests/engines/test_readme.py",
    "packages/twinkle-http/README.md": "tests/http/test_readme.py",
    "packages/twinkle-mesh/README.md": "tests/mesh/test_readme.py",
    "packages/twinkle-ray/README.md": "tests/ray/test_readme.py",
    "packages/twinkle-remote/README.md": "tests/remote/test_readme.py",
}
PREPARED = {
    "docs/streams.md": "docs_streams.py",
}
"""Programs in the folder `prepared` that run before those of a page: they define what the page takes as known."""
SLOW = {"docs/models.md"}
FENCE = re.compile(r"^```(\w+)(?: (\w+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def pages() -> dict[str, str]:
    found = [ROOT / "README.md", *ROOT.glob("packages/*/README.md"), *(ROOT / "docs").rglob("*.md")]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in found}


def blocks(text: str, language: str, role: str | None) -> list[str]:
    return [body for tongue, marked, body in FENCE.findall(text) if (tongue, marked) == (language, role or "")]


PAGES = {name: text for name, text in pages().items() if blocks(text, "python", None)}
HERE = sorted(set(PAGES) - set(ELSEWHERE))
ON_RAY = [name for name in HERE if '"ray"' in "".join(blocks(PAGES[name], "python", None))]


def run(name: str, folder: Path) -> None:
    """Run the program of a page in a folder, and compare what it prints and writes."""
    program = "\n".join(blocks(PAGES[name], "python", None))
    scope: dict[str, object] = {"__name__": "__main__"}
    printed = io.StringIO()
    tables: list[Any] = [(table, dict(table)) for table in (DISPATCH, COLLECT)]  # a page may add to them
    try:
        if name in PREPARED:
            prepared = Path(__file__).parent / "prepared" / PREPARED[name]
            exec(compile(prepared.read_text(encoding="utf-8"), str(prepared), "exec"), scope)
        with contextlib.redirect_stdout(printed):
            exec(compile(program, str(ROOT / name), "exec"), scope)
    finally:
        twinkle.shutdown()
        for table, before in tables:
            table.clear()
            table.update(before)
        if dist.is_initialized():  # the programs of the next page, and other tests, begin without one
            dist.destroy_process_group()
    for shown in blocks(PAGES[name], "text", "output"):
        assert shown.strip() in _without_ends(printed.getvalue()), (
            f"{name} shows:\n{shown}\nprinted:\n{printed.getvalue()}"
        )
    for picture in folder.glob("*.svg"):
        drawn = (PICTURES / picture.name).read_text(encoding="utf-8")
        assert picture.read_text(encoding="utf-8") == drawn, f"{name} draws another {picture.name}"


def _without_ends(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines())


@pytest.mark.filterwarnings("ignore:.*the whole gradient is 0")  # equal rewards of a group, in a tiny loop
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft reads it
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in HERE if name not in ON_RAY],
)
def test_the_programs_of_a_page_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(name, tmp_path)


@pytest.mark.ray
@pytest.mark.parametrize("name", ON_RAY)
def test_the_programs_of_a_page_run_on_ray(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray_cluster: None
) -> None:
    monkeypatch.chdir(tmp_path)
    run(name, tmp_path)


def test_each_page_with_a_program_has_a_test() -> None:
    assert set(ELSEWHERE) <= set(PAGES)
    for name, test in ELSEWHERE.items():
        assert name.rpartition("/")[2] in (ROOT / test).read_text(encoding="utf-8")


def test_pictures_are_shown() -> None:
    written = "".join(pages().values())
    assert [path.name for path in PICTURES.iterdir() if f"pictures/{path.name}" not in written] == []


COMMANDS = {
    line.partition("  #")[0].strip(): None
    for text in pages().values()
    for block in blocks(text, "sh", None)
    for line in block.splitlines()
    if re.match(r"twinkle (?:mesh|doctor)|python examples/", line)
}


@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=pytest.mark.slow if "doctor" in line else ()) for line in COMMANDS]
)
def test_a_command_runs(line: str, tmp_path: Path) -> None:
    words = shlex.split(line)
    if words[0] == "python":
        assert (ROOT / words[1]).exists()
        words = [sys.executable, str(ROOT / words[1]), "--help"]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0 or words[1] == "doctor", done.stderr
