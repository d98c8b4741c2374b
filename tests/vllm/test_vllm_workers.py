from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "tools"


def run(program: str, *arguments: str) -> Any:
    command = [sys.executable, str(PROGRAMS / program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=840, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_two_engines_on_a_cluster_take_the_weights_of_two_trainers(folder: str) -> None:
    figures = run("run_vllm_on_ray.py", folder)
    assert figures["before"] > 1.01 and figures["after"] < 1.0001
    assert figures["versions"] == [1] and figures["alike"]


def test_an_engine_over_two_processes_takes_the_trainers_weights(folder: str) -> None:
    figures = run("run_tensor_parallel.py", folder)
    assert figures["before"] > 1.01 and figures["after"] < 1.0001
    assert figures["versions"] == [1]
