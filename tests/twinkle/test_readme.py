"""The README's example runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _example() -> str:
    (first, *_) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return str(first)


def test_example_is_short() -> None:
    assert len([line for line in _example().splitlines() if line.strip()]) <= 15


@pytest.mark.ray
def test_example_runs(tmp_path: Path) -> None:
    program = tmp_path / "example.py"
    program.write_text(_example())
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["[0, 1] [1, 2]", "[2, 3] [3, 4]"]


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert links
    assert all((ROOT / link).exists() for link in links)
