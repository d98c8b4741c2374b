"""Types: right programs are accepted and wrong ones are refused, by mypy --strict and by pyright."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(300)
def test_checkers_agree_with_the_marks() -> None:
    runner = Path(__file__).with_name("run.py")
    done = subprocess.run([sys.executable, str(runner), sys.executable], capture_output=True, text=True, timeout=290)
    assert done.returncode == 0, done.stdout + done.stderr
