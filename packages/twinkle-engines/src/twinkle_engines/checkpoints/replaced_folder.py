"""A folder that holds one thing: what is written takes the place of what was there, at once or not at all."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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

    Other files of the old one stay; after an error all of it stays as it was.

    Args:
        folder: The one that is replaced; it is made, with its parents.
        replaces: Patterns of the files of the old one that go.
    """
    folder = folder.absolute()
    if folder.is_symlink():
        folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = folder.parent / f".{folder.name}.new-{os.getpid():x}"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    try:
        yield fresh
        if folder.exists():
            _keep_others(folder, fresh, replaces)
            shutil.copymode(folder, fresh)
        _put_in_place(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


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
