from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "tools"


def run(program: str, folder: str, output: Path, *more: str) -> Any:
    """The figures of a program; its standard output is vLLM's and Ray's too."""
    command = [sys.executable, str(PROGRAMS / program), folder, str(output), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=840, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(output.read_text())


def test_two_engines_on_a_cluster_take_the_weights_of_two_trainers(folder: str, tmp_path: Path) -> None:
    figures = run("run_vllm_on_ray.py", folder, tmp_path / "figures")
    assert figures["before"] > 1.01 and figures["after"] < 1.0001
    assert figures["versions"] == [1] and figures["alike"]


@pytest.mark.parametrize("mode", ["local", "ray"])
def test_an_engine_over_two_processes_takes_the_trainers_weights(folder: str, tmp_path: Path, mode: str) -> None:
    figures = run("run_tensor_parallel.py", folder, tmp_path / "figures", mode)
    assert figures["before"] > 1.01 and figures["after"] < 1.0001
    assert figures["versions"] == [1]
