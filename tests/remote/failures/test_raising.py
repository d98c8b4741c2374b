"""The text of a failed call stays readable, however many ranks failed."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from twinkle_remote.errors import RemoteCallError
from twinkle_remote.failures.report import raise_failures
from twinkle_remote.protocol.messages import Failure

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("ranks", "rest"), [(65, ""), (10_000, " and 9935 more")])
def test_equal_failures_name_some_of_their_ranks(ranks: int, rest: str) -> None:
    failures = [
        Failure(f"actor[{rank}/{ranks}]", "host", "ValueError", "no", method="Actor.step") for rank in range(ranks)
    ]
    with pytest.raises(RemoteCallError) as caught:
        raise_failures("Actor.step", "actor", failures, "loop.py:7")
    text = str(caught.value)
    assert f"and {ranks - 1} more of group 'actor'" in text
    assert f"actor[63/{ranks}], actor[64/{ranks}]{rest}: ValueError: no" in text
    assert f"actor[65/{ranks}]" not in text


PROGRAM = """
import sys
from twinkle_mesh import DeviceGroup
from twinkle_remote import get, remote_class, remote_function, session

@remote_class()
class Model:
    @remote_function(dispatch="all", collect="first")
    def step(self, scale):
        inner = scale * 2
        return inner / 0

with session(sys.argv[1], groups=[DeviceGroup("one", 1, "CPU")]):
    get(Model(remote_group="one").step(21))
"""


@pytest.mark.parametrize("mode", ["local", "threads"])
def test_a_debugger_stops_in_the_frame_of_the_method(mode: str, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    command = [sys.executable, "-m", "pdb", "-c", "continue", "-c", "p ('inner', inner)", "-c", "q", str(file), mode]
    done = subprocess.run(command, input="q\n", capture_output=True, text=True, timeout=100)
    assert "('inner', 42)" in done.stdout
