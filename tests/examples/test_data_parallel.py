import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "data_parallel.py"
WAYS = {
    "local": [sys.executable, str(EXAMPLE)],
    "threads": [sys.executable, str(EXAMPLE), "--mode", "threads"],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", str(EXAMPLE)],
    "ray": [sys.executable, str(EXAMPLE), "--mode", "ray"],
}


def losses(way: str, environment: Mapping[str, str] | None = None) -> list[float]:
    done = subprocess.run(WAYS[way], capture_output=True, text=True, timeout=600, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return [float(loss) for loss in re.findall(r"^step +\d+  loss ([0-9.]+)$", done.stdout, re.MULTILINE)]


@pytest.fixture(scope="module")
def alone() -> list[float]:
    return losses("local")


def test_the_loss_falls(alone: list[float]) -> None:
    assert len(alone) == 7 and alone[-1] < 0.7 * alone[0]


@pytest.mark.parametrize("way", ["threads", "torchrun"])
def test_the_numbers_are_the_same_wherever_it_runs(way: str, alone: list[float]) -> None:
    assert losses(way) == pytest.approx(alone, abs=2e-9)


@pytest.mark.ray
def test_the_numbers_are_the_same_on_ray(joining: dict[str, str], alone: list[float]) -> None:
    assert losses("ray", joining) == pytest.approx(alone, abs=2e-9)
