"""Types that only the program itself knows: those of `__main__`, of an IPython session, and their rows."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.ray

TYPES = """
    import dataclasses
    import json
    from typing import NamedTuple

    import twinkle_remote as twinkle
    from twinkle_mesh import DeviceGroup, DeviceMesh

    @dataclasses.dataclass
    class Data:
        x: list

    class Pair(NamedTuple):
        x: list

    class Broken:
        def __init__(self, x):
            pass

        def __reduce__(self):
            return explode, ()

    def explode():
        raise ValueError("cannot be made again")

    class Rows:
        def __init__(self, rows):
            self.rows = rows

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, index):
            return self.rows[index]

    def some(value, rows):
        return type(value)([value.rows[row] for row in rows])

    def together(values):
        return type(values[0])([row for value in values for row in value.rows])

    class OddError(Exception):
        def __init__(self, code, *, detail):
            super().__init__(f"odd {code}")
            self.code, self.detail = code, detail

    KINDS = {kind.__name__: kind for kind in (Data, Pair, Broken)}

    @twinkle.remote_class()
    class Echo:
        @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
        def rows(self, rows):
            return rows

        @twinkle.remote_function(dispatch="slice_dp")
        def sizes(self, rows):
            return len(rows)

        @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
        def makes(self, rows):
            return Rows(list(rows))

        @twinkle.remote_function(dispatch="all", collect="first")
        def make(self, kind, length):
            return KINDS[kind]([1] * length)

        @twinkle.remote_function(dispatch="all", collect="first")
        def fail(self):
            raise OddError(7, detail="why")
"""
USE = """
    with twinkle.session("ray", groups=[DeviceGroup("two", 2, "CPU")]):
        echo = Echo(remote_group="two", device_mesh=DeviceMesh.from_sizes(dp_size=2))
        told = {"made": [], "split": []}
        for name in ("Data", "Pair"):
            for length in (3, 100_000):
                value = twinkle.get(echo.make(name, length))
                told["made"].append(type(value) is KINDS[name] and value.x == [1] * length)
            value = KINDS[name]([1, 2, 3])
            told["split"].append(twinkle.get(echo.rows(echo.rows(value))) == value)
        try:
            twinkle.get(echo.make("Broken", 1))
        except twinkle.CollectError as error:
            told["broken"] = str(error)
        twinkle.register_rows(Rows, take=some, concat=together)
        value = Rows(list(range(7)))
        told["split"].append(list(echo.sizes(value)) == [4, 3])
        told["split"].append(list(echo.sizes(twinkle.submit(echo.rows, value))) == [4, 3])
        told["split"].append(twinkle.get(echo.rows(value)).rows == list(range(7)))
        told["split"].append(list(echo.sizes(twinkle.submit(echo.makes, list(range(7))))) == [4, 3])
        try:
            twinkle.get(echo.fail())
        except OddError as error:
            told["error"] = [error.code, error.detail, list(error.args)]
    print("told:", json.dumps(told), flush=True)
"""


def check(out: str) -> None:
    """What the program told."""
    (line,) = [line for line in out.splitlines() if "told: " in line]
    told: dict[str, Any] = json.loads(line.partition("told: ")[2])
    assert told["made"] == [True] * 4 and told["split"] == [True] * 6, told
    assert "Echo.make" in told["broken"] and "two[0/2 dp=0]" in told["broken"]
    assert "ValueError: cannot be made again" in told["broken"]
    assert told["error"] == [7, "why", ["odd 7"]]


def test_types_of_a_program_go_to_workers_and_back(joined_program: Callable[..., Any]) -> None:
    check(joined_program(TYPES + USE).finish(timeout=100))


def test_types_of_an_ipython_session_go_to_workers_and_back(joining: dict[str, str], tmp_path: Path) -> None:
    cells = map(textwrap.dedent, (TYPES, USE))
    path = tmp_path / "session.ipy"
    path.write_text("".join(f"get_ipython().run_cell({cell!r}).raise_error()\n" for cell in cells))
    command = [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", f"--ipython-dir={tmp_path}"]
    done = subprocess.run([*command, str(path)], capture_output=True, text=True, timeout=300, cwd=tmp_path, env=joining)
    assert done.returncode == 0, done.stdout + done.stderr
    check(done.stdout)
