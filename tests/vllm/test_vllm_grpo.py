from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples/grpo.py"


def test_the_reward_of_the_example_rises() -> None:
    command = [sys.executable, str(EXAMPLE), "--engine", "vllm", "--steps", "40"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=840, check=False)
    assert done.returncode == 0, done.stderr
    history = [float(one) for one in re.findall(r"reward (\d\.\d+) entropy", done.stdout)]
    assert len(history) == 40
    assert sum(history[-5:]) / 5 > sum(history[:5]) / 5 + 0.25
    ratio = re.search(r"trainer's: ratio (\S+), worst (\S+)$", done.stdout, re.MULTILINE)
    assert ratio is not None and 1.0 <= float(ratio[1]) <= float(ratio[2]) < 1.001
