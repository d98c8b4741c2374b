"""A folder that holds one thing: what is written takes the place of what was there, at once or not at all."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = (
    "config.json",
    "generation_config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "pytorch_model*.bin",
    "*.bin.index.json",
    "consolidated*.pth",
    "tf_model.h5",
    "flax_model.msgpack",
    "adapter_config.json",
    "adapter_model.bin",
)
"""Files that a loader of models reads in a folder, next to the tokenizer."""
ADAPTER = ("adapter_config.json", "adapter_model.*")
"""Files that a loader of adapters reads."""
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin", "consolidated*", "tf_model.h5", "flax_model.msgpack")


def folder_path(name: str, value: object) -> Path:
    """A path of a folder, whether it is there or not.

    Raises:
        TypeError: It is no path.
        ValueError: It is empty, or begins with a home folder's sign, which nothing expands.
    """
    try:
        text: Any = fspath(value) if isinstance(value, str | PathLike) else None
    except TypeError:  # a class that only claims to be a path
        text = None
    if not isinstance(text, str):
        raise TypeError(f"{name} is a path, got {value!r:.60} of type {type(value).__name__}; use a str or a Path")
    if not text:
        raise ValueError(f'{name} is a path, got an empty text; use "." for the current folder')
    if text.startswith("~"):
        raise ValueError(f"{name} is {text!r}, in which ~ is not expanded; use Path({text!r}).expanduser()")
    return Path(text)


def check_adapters_folder(folder: Path) -> None:
    """Raise for a folder of adapters that holds a whole model.

    Raises:
        ValueError: It does: a loader would take the model for what was trained, or add the adapters to it twice.
    """
    found = sorted(path.name for pattern in _WEIGHTS for path in folder.glob(pattern)) if folder.is_dir() else []
    if found:
        raise ValueError(
            f"{folder} holds a model ({', '.join(found[:3])}), and a folder holds one thing: use another folder for "
            "the adapters, or merge=True to replace the model"
        )


@contextmanager
def replaced_folder(folder: Path, replaces: tuple[str, ...]) -> Iterator[Path]:
    """A folder to write in, which takes the place of another one at the end of the block.

    Other files of the old one stay; after an error all of it stays as it was. A folder that cannot be moved, because it
    is the current one or a mount point, or its parent is not to be written in, gets its files one by one, and the
    config, without which no loader reads it, at last.

    Args:
        folder: The one that is replaced; it is made, with its parents.
        replaces: Patterns of the files of the old one that go.

    Raises:
        NotADirectoryError: There is a file of that name.
    """
    folder = folder.absolute()
    if folder.is_symlink():
        folder = folder.resolve()
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file: use another name for the folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    moves = _can_be_moved(folder)
    fresh = (folder.parent if moves else folder) / f".{folder.name}.new-{os.getpid():x}"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    try:
        yield fresh
        if not moves:
            _replace_files(folder, fresh, replaces)
            return
        if folder.exists():
            _keep_others(folder, fresh, replaces)
            shutil.copymode(folder, fresh)
        _put_in_place(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _can_be_moved(folder: Path) -> bool:
    """Whether a folder, which may not be there, can give way to another one of its name."""
    if not folder.exists():
        return True
    place = folder.resolve()
    try:
        current = Path.cwd()
    except FileNotFoundError:  # it was removed
        current = Path("/")
    held = place == current or place in current.parents
    return not held and not folder.is_mount() and os.access(folder.parent, os.W_OK | os.X_OK)


def _replace_files(folder: Path, fresh: Path, replaces: tuple[str, ...]) -> None:
    """Put fresh files in the place of old ones; in between the folder has no config."""
    for old in sorted({path for pattern in replaces for path in folder.glob(pattern)}, key=_is_late, reverse=True):
        old.unlink()
    for path in sorted(fresh.iterdir(), key=_is_late):
        path.replace(folder / path.name)


def _is_late(path: Path) -> bool:
    return path.name in ("config.json", "adapter_config.json")


def _keep_others(folder: Path, fresh: Path, replaces: tuple[str, ...]) -> None:
    gone = {path.name for pattern in replaces for path in folder.glob(pattern)}
    for path in folder.iterdir():
        target = fresh / path.name
        if path.name in gone or target.exists():
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, target, symlinks=True, copy_function=_link)
        else:
            _link(path, target)


def _link(source: str | Path, target: str | Path) -> None:
    """The same file under another name; a copy where the disk has no such links."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def _put_in_place(fresh: Path, folder: Path) -> None:
    old = folder.parent / f".{folder.name}.old-{os.getpid():x}"
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.replace(old)
    try:
        fresh.replace(folder)
    except OSError:
        if old.exists():
            old.replace(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)
