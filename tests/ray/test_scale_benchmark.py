"""The benchmark of scale runs, on Ray too, where a group of its own stands for many ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "bench_scale.py"


def test_its_figures_are_there_for_each_number_of_ranks(joining: dict[str, str], tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    options = ["--mode", "ray", "--ranks", "8", "24", "--rounds", "1", "--json", str(figures)]
    command = [sys.executable, str(BENCHMARK), *options]
    out = subprocess.run(command, capture_output=True, text=True, timeout=300, env=joining)
    assert out.returncode == 0, out.stdout + out.stderr
    rows = json.loads(figures.read_text())
    assert {row["ranks"] for row in rows} == {8, 24}
    assert all(row["seconds"] > 0 and row["peak_bytes"] > 0 for row in rows)
