"""A folder holds what was written last, wherever it lies: moved, the current one, or one whose parent is not ours."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from twinkle_engines.checkpoints.replaced_folder import ADAPTER, MODEL, replaced_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

OLD = {
    MODEL: ("config.json", "model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json"),
    ADAPTER: ("adapter_config.json", "adapter_model.bin", "adapter_model.safetensors"),
}
OTHERS = ("notes.txt", "tokenizer.json", "runs/events")


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def write(folder: Path, names: tuple[str, ...], text: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    before = Path.cwd()
    yield tmp_path / "out"
    os.chdir(before)


@pytest.mark.parametrize("patterns", [MODEL, ADAPTER])
@pytest.mark.parametrize("where", ["moved", "current", "below the current one", "linked"])
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_old_files_go_and_others_stay(
    place: Path, patterns: tuple[str, ...], where: str, fails: bool, seed: int
) -> None:
    draw = random.Random(seed)
    old = tuple(draw.sample(OLD[patterns], 2))
    new = tuple(draw.sample(OLD[patterns], 2))
    write(place, (*old, *OTHERS), "old")
    before = contents(place)
    folder = place
    if where == "linked":
        folder = place.parent / "link"
        folder.symlink_to(place)
    elif where != "moved":
        (place / "runs").mkdir(exist_ok=True)
        os.chdir(place / "runs" if "below" in where else place)
        folder = Path(".." if "below" in where else ".")
    expected = before if fails else {**dict.fromkeys(OTHERS, "old"), **dict.fromkeys(new, "new")}
    end: AbstractContextManager[object] = pytest.raises(OSError, match="full") if fails else nullcontext()
    with end, replaced_folder(folder, patterns) as fresh:
        write(fresh, new, "new")
        if fails:
            raise OSError("full")
    assert contents(place) == expected
    assert Path.cwd().exists() and not list(place.parent.glob(".out*")) and not list(place.glob(".*"))


def test_a_mount_point_gets_its_files(tmp_path: Path) -> None:
    """In namespaces of its own, where this kernel gives them."""
    program = (
        "import pathlib, sys; from twinkle_engines.checkpoints.replaced_folder import MODEL, replaced_folder\n"
        "place = pathlib.Path(sys.argv[1]); assert place.is_mount(); (place / 'model.safetensors').write_text('old')\n"
        "with replaced_folder(place, MODEL) as fresh: (fresh / 'config.json').write_text('new')\n"
        "assert [path.name for path in place.iterdir()] == ['config.json']"
    )
    (tmp_path / "out").mkdir()
    script = 'mount -t tmpfs none "$1" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]
    probe = subprocess.run([*command[:4], "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"no namespaces here: {probe.stderr.decode()[-200:]}")
    arguments = [str(tmp_path / "out"), sys.executable, program]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    write(tmp_path, ("out",), "mine")
    with pytest.raises(NotADirectoryError, match="is a file"), replaced_folder(tmp_path / "out", MODEL):
        pass
    assert contents(tmp_path) == {"out": "mine"}
