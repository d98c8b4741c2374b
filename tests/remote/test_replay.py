"""A call that failed is saved on request, privately and within limits, and raises the same error in one process."""

from __future__ import annotations

import os
import pickle
import random
import re
import stat
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import (
    RemoteCallError,
    TwinkleError,
    current_worker,
    get,
    remote_class,
    remote_function,
    replay,
    session,
)

GROUPS = [DeviceGroup("two", 2, "CPU")]
MESH = DeviceMesh.from_sizes(dp_size=2, device_type="cpu")


@remote_class()
class Fragile:
    def __init__(self, table: dict[str, int], device_mesh: Any = None, remote_group: Any = None) -> None:
        self.table = dict(table)
        self.drawn = random.random()
        table.clear()  # what is saved is from before

    @remote_function(dispatch="slice_dp")
    def look(self, rows: list[str], lock: Any = None) -> list[int]:
        here = current_worker()
        if self.table.get(rows[0]) is None:
            raise KeyError(rows[0], here.group, here.rank, here.world_size, dict(here.coordinate))
        return [self.table[row] for row in rows]

    @remote_function()
    def draw(self) -> None:
        raise LookupError(self.drawn)

    @remote_function()
    async def look_later(self, row: str) -> int:
        return self.table[row]


@remote_class()
class Unbuildable:
    def __init__(self, size: int, remote_group: Any = None) -> None:
        raise MemoryError(f"{size} bytes")


def failed_look(folder: Path, rows: list[str], **more: Any) -> str:
    with session("threads", groups=GROUPS, save_failures=folder):
        fragile = Fragile({"a": 1}, device_mesh=MESH, remote_group="two")
        with pytest.raises(KeyError) as caught:
            get(fragile.look(rows, **more))
    return str(caught.value)


def file_in(said: str) -> str:
    [path] = re.findall(r"run it again in one process: twinkle replay (\S+)$", said, re.MULTILINE)
    return str(path)


def test_the_call_of_that_rank_fails_again_in_one_process(tmp_path: Path) -> None:
    folder = tmp_path / "failures"
    path = file_in(failed_look(folder, ["a", "missing"]))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    with pytest.raises(KeyError) as caught:
        replay(path)
    assert caught.value.args == ("missing", "two", 1, 2, {"dp": 1})
    assert not isinstance(caught.value, RemoteCallError)


def test_coroutines_and_constructors_fail_again(tmp_path: Path) -> None:
    with session("threads", groups=GROUPS, save_failures=tmp_path / "failures"):
        fragile = Fragile({"a": 1}, remote_group="two")
        with pytest.raises(KeyError) as later:
            get(fragile.look_later("b"))
        with pytest.raises(MemoryError) as unbuilt:
            Unbuildable(7, remote_group="two")
    with pytest.raises(KeyError, match="b"):
        replay(file_in(str(later.value)))
    with pytest.raises(MemoryError, match="7 bytes"):
        replay(file_in(str(unbuilt.value)))


def test_a_constructor_draws_the_same_again(tmp_path: Path) -> None:
    with session("threads", groups=GROUPS, seed=5, save_failures=tmp_path / "failures"):
        Fragile({"a": 1}, remote_group="two")
        with pytest.raises(LookupError) as drawn:
            get(Fragile({"a": 1}, remote_group="two").draw())
    with pytest.raises(LookupError) as again:
        replay(file_in(str(drawn.value)))
    assert again.value.args == drawn.value.args == (random.Random(6).random(),)


@pytest.mark.slow
def test_nothing_is_saved_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with session("threads", groups=GROUPS):
        fragile = Fragile({"a": 1}, remote_group="two")
        with pytest.raises(KeyError) as caught:
            get(fragile.look_later("b"))
    assert "twinkle replay" not in str(caught.value) and not list(tmp_path.iterdir())


def test_the_environment_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "s3cr3t-of-the-environment")
    path = file_in(failed_look(tmp_path / "failures", ["a", "missing"]))
    assert b"s3cr3t" not in Path(path).read_bytes()


def test_what_cannot_be_saved_is_told_beside_the_error(tmp_path: Path) -> None:
    said = failed_look(tmp_path / "failures", ["a", "missing"], lock=threading.Lock())
    assert "this call is not saved: TypeError: cannot pickle '_thread.lock' object" in said


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.failure"
    for data, rule in ((pickle.dumps(len), "builtin_function_or_method"), (b"text", "no saved call")):
        path.write_bytes(data)
        with pytest.raises(TwinkleError, match=rule):
            replay(path)


def test_where_a_call_fails_in_this_process_nothing_is_saved(tmp_path: Path) -> None:
    with session("local", save_failures=tmp_path / "failures"), pytest.raises(MemoryError):
        Unbuildable(7, remote_group="two")
    assert not list(tmp_path.iterdir())


PROGRAM = """
import sys, twinkle
from twinkle import DeviceGroup

class Row:
    def __init__(self, value): self.value = value

@twinkle.remote_class()
class Actor:
    def __init__(self, scale): self.scale = scale
    @twinkle.remote_function()
    def update(self, row): raise ArithmeticError(f"{self.scale} * {row.value}")

if __name__ == "__main__":
    twinkle.initialize(sys.argv[1], groups=[DeviceGroup("actor", 1, "CPU")], save_failures=sys.argv[2])
    actor = Actor(3, remote_group="actor")
    try:
        actor.update(Row(4)).result()
    except ArithmeticError as error:
        print(error)
    twinkle.shutdown()
"""


@pytest.mark.parametrize("mode", ["threads", pytest.param("ray", marks=pytest.mark.ray)])
@pytest.mark.slow
def test_the_command_debugs_what_a_program_defines_itself(
    request: pytest.FixtureRequest, tmp_path: Path, mode: str
) -> None:
    environment = request.getfixturevalue("joining") if mode == "ray" else None
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ran = [sys.executable, str(program), mode, str(tmp_path / "failures")]
    printed = subprocess.run(ran, capture_output=True, text=True, timeout=170, check=True, env=environment).stdout
    path = file_in(printed)
    command = [sys.executable, "-m", "twinkle", "replay", path, "--pdb"]
    done = subprocess.run(command, input="p row.value\nq\n", capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "Actor.update of rank 0 of 1 in group 'actor' raised ArithmeticError:\n  3 * 4\n" in done.stdout
    assert "(Pdb) 4\n" in done.stdout
    assert done.stderr.endswith("ArithmeticError: 3 * 4\n")


@pytest.mark.slow
def test_a_program_without_a_part_for_main_does_not_run_again(tmp_path: Path) -> None:
    """It is read as far as its session, with the arguments that it had."""
    before, _, after = PROGRAM.partition('if __name__ == "__main__":\n')
    program = tmp_path / "program.py"
    program.write_text(before + "mode, folder = sys.argv[1:]\n" + textwrap.dedent(after).replace("sys.argv[1]", "mode"))
    ran = [sys.executable, str(program), "threads", str(tmp_path / "failures")]
    path = file_in(subprocess.run(ran, capture_output=True, text=True, timeout=60, check=True).stdout)
    command = [sys.executable, "-m", "twinkle", "replay", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and done.stderr.endswith("ArithmeticError: 3 * 4\n")
    assert len(list((tmp_path / "failures").iterdir())) == 1


def test_the_command_refuses_what_is_no_saved_call(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "twinkle", "replay", str(tmp_path / "none.failure")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and done.stderr.startswith("twinkle replay: [Errno 2] No such file")
