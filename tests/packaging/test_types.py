"""The typed surface of the installed wheels, not of the source tree."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.packaging.conftest import Workspace


@pytest.mark.packaging
@pytest.mark.timeout(300)
def test_wheels_accept_right_programs_and_refuse_wrong_ones(workspace: Workspace, tmp_path: Path) -> None:
    python = workspace.environment(tmp_path / "env")
    workspace.install(python, workspace.wheel("twinkle-all"), "numpy")
    runner = workspace.root / "tests" / "typing" / "run.py"
    workspace.run(sys.executable, runner, python, cwd=tmp_path)
