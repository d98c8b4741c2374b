"""Checkpoints of a training: model, loader, stream and version in one folder, written whole or not at all."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import twinkle
from twinkle_remote.backends.support import is_read_by_a_stream

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from twinkle.engines.transformers_model import TransformersModel

_PREFIX = "checkpoint-"
_MANIFEST = "manifest.json"


class Stateful(Protocol):
    """What has a state: a DataLoader, a Stream, a WeightSync."""

    def state_dict(self) -> Any:
        """The state."""

    def load_state_dict(self, state: Any) -> None:
        """Take the state over."""


def save(
    folder: str | PathLike[str],
    *,
    model: TransformersModel | None = None,
    loader: Stateful | None = None,
    sync: Stateful | None = None,
    stream: Stateful | None = None,
    keep: int = 2,
) -> Path:
    """Write a checkpoint on the driver, and delete old ones.

    It has its name only once all of it is written: one that was interrupted is never found.

    Args:
        folder: Where the checkpoints are; the driver and all workers see it.
        model: Its weights, optimizer, schedule and generator; each rank writes its part.
        loader: Its position.
        sync: Its version.
        stream: The rows that are finished and at work, and its source's position.
        keep: Newest checkpoints that stay, at least 1.

    Returns:
        The checkpoint's folder.

    Raises:
        ValueError: If `keep` is below 1, if gradients wait for the next `step` of the model, if nothing is given, or if
            a stream reads the loader: the stream's state holds the loader's.
    """
    parts = {name: part for name, part in (("loader", loader), ("sync", sync), ("stream", stream)) if part is not None}
    if keep < 1 or (model is None and not parts):
        raise ValueError(
            f"save keeps at least 1 checkpoint of at least one of model, loader, sync, stream: keep={keep}"
        )
    if loader is not None and is_read_by_a_stream(loader):
        raise ValueError(
            "a stream reads the loader, which is ahead of what was delivered: save(stream=...) without loader="
        )
    root = Path(folder).absolute()
    root.mkdir(parents=True, exist_ok=True)
    number = max(map(_number, _complete(root)), default=0) + 1
    partial, final = root / f".{_PREFIX}{number:08d}", root / f"{_PREFIX}{number:08d}"
    if _writes():
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(final, ignore_errors=True)  # a damaged one, or it would be the newest
    _wait_for_first()  # or it would delete what others write
    if model is not None:
        twinkle.get(model.save_state(str(partial / "model")))
    if _writes():
        partial.mkdir(exist_ok=True)
        for name, part in parts.items():
            (partial / f"{name}.pkl").write_bytes(pickle.dumps(part.state_dict()))
        _write_manifest(partial)
        partial.replace(final)
        _flush(root)
        for old in sorted(_complete(root), key=_number)[:-keep]:
            shutil.rmtree(old)
    _wait_for_first()
    return final


def load(
    folder: str | PathLike[str],
    *,
    model: TransformersModel | None = None,
    loader: Stateful | None = None,
    sync: Stateful | None = None,
    stream: Stateful | None = None,
) -> Path | None:
    """Read the newest whole checkpoint into the parts that are given, on any mesh.

    Args:
        folder: Where the checkpoints are. They are pickled in part: read only those that you trust.
        model: As for `save`; its parameters are those of the one that was saved.
        loader: As for `save`.
        sync: As for `save`; the next sync publishes the next version.
        stream: As for `save`.

    Returns:
        The checkpoint's folder; None where there is none, and then nothing has changed.

    Raises:
        ValueError: The checkpoint has no state of a part.
    """
    root = Path(folder).absolute()
    found = max(_complete(root), key=_number, default=None) if root.is_dir() else None
    if found is None:
        return None
    given: Mapping[str, object] = {"model": model, "loader": loader, "sync": sync, "stream": stream}
    missing = [
        name
        for name, part in given.items()
        if part is not None and not (found / (name if name == "model" else f"{name}.pkl")).exists()
    ]
    if missing:
        raise ValueError(
            f"{found} has no state of {', '.join(missing)}; save({', '.join(f'{n}=...' for n in missing)})"
        )
    if model is not None:
        twinkle.get(model.load_state(str(found / "model")))
    for name, part in (("loader", loader), ("sync", sync), ("stream", stream)):
        if part is not None:
            part.load_state_dict(pickle.loads((found / f"{name}.pkl").read_bytes()))
    return found


def _number(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix(_PREFIX))


def _complete(root: Path) -> list[Path]:
    """The checkpoints whose files are all there, with the sizes that were written."""
    found = [path for path in root.glob(f"{_PREFIX}*") if path.name.removeprefix(_PREFIX).isdigit()]
    return [path for path in found if _is_whole(path)]


def _is_whole(checkpoint: Path) -> bool:
    try:
        sizes = json.loads((checkpoint / _MANIFEST).read_text(encoding="utf-8"))
        return all((checkpoint / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


def _write_manifest(checkpoint: Path) -> None:
    """List the files with their sizes, once they are on the disk."""
    files = [path for path in sorted(checkpoint.rglob("*")) if path.is_file()]
    for path in files:
        _flush(path)
    sizes = {path.relative_to(checkpoint).as_posix(): path.stat().st_size for path in files}
    (checkpoint / _MANIFEST).write_text(json.dumps(sizes), encoding="utf-8")
    _flush(checkpoint / _MANIFEST)


def _flush(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _writes() -> bool:
    """Whether this process writes for all that run the same: under a launcher every process is the driver."""
    return twinkle.current_place().rank == 0


def _wait_for_first() -> None:
    """Wait until the first of several processes is here, which clears the place of the checkpoint and names it."""
    if not twinkle.current_place().alone:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.barrier()
