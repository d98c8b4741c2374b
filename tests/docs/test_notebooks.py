"""The notebooks run, and show what is stored in them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

NOTEBOOKS = Path(__file__).parents[2] / "docs" / "notebooks"
RUN = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import nbformat, run
nbformat.write(run.run(Path(sys.argv[1], sys.argv[2]), Path.cwd()), "done.ipynb")
"""


def shown(path: Path) -> list[tuple[str, list[str]]]:
    """Return the source of each cell of code, and what it shows; pictures of pixels only by their kind."""
    notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]  # nbformat's own gap
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [(cell.source, [_text(output) for output in cell.outputs]) for cell in cells]


def _text(output: Any) -> str:
    if output.output_type == "stream":
        return str(output.text)
    data = output.data
    return "a picture" if "image/png" in data else "".join(str(data[kind]) for kind in sorted(data))


def check(name: str, folder: Path, environment: dict[str, str] | None = None) -> None:
    command = [sys.executable, "-c", RUN, str(NOTEBOOKS), name]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=600, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert shown(folder / "done.ipynb") == shown(NOTEBOOKS / name), "python docs/notebooks/run.py stores what they show"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exact_data.ipynb"])
def test_a_notebook_runs(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


@pytest.mark.ray
def test_a_notebook_runs_on_ray(joining: dict[str, str], tmp_path: Path) -> None:
    check("remote_loop.ipynb", tmp_path, joining)


def test_each_notebook_is_here_and_shows_something() -> None:
    assert {path.name for path in NOTEBOOKS.glob("*.ipynb")} == {
        "exact_data.ipynb",
        "remote_loop.ipynb",
    }
    for path in NOTEBOOKS.glob("*.ipynb"):
        assert any(outputs for _, outputs in shown(path))
