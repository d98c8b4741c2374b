"""What the garbage collector calls while the interpreter ends: a program whose objects outlive all modules."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import os
import sys

import twinkle_data
import twinkle_remote as twinkle
from twinkle_mesh import DeviceGroup

@twinkle.remote_class()
class Model:
    @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
    def same(self, rows):
        return rows

if __name__ == "__main__":
    mode = sys.argv[1]
    twinkle.initialize(mode, groups=[DeviceGroup("two", 2, "CPU")] if mode == "threads" else None)
    model = twinkle.on("two").create(Model) if mode == "threads" else Model()
    loader = twinkle_data.DataLoader(list(range(8)), batch_size=2)
    stream = twinkle.stream(loader, model.same, ahead=2 if mode == "threads" else 0)
    # Modules that something holds are cleared in reverse order of their import, with sys as the last one: what `os`
    # holds is deleted when the names of later modules are None, and errors are still shown.
    sys.held = list(sys.modules.values())
    results = [twinkle.submit(model.same, [1, 2]), next(iter(stream))]
    os.kept = [model, loader, stream, results]
    print("READY")
"""


@pytest.mark.parametrize("mode", ["local", "threads"])
def test_a_program_whose_results_outlive_all_modules_ends_silently(mode: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    ended = subprocess.run(
        [sys.executable, "program.py", mode], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "READY\n", "")
