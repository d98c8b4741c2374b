"""Checkpoints of a training: model, loader, stream and version in one folder, written whole or not at all."""

from __future__ import annotations

import json
import logging
import os
import pickle
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from twinkle_engines.checkpoints.agreed import agreed
from twinkle_mesh import with_known_names
from twinkle_remote import current_place, get
from twinkle_remote.backends.support import is_read_by_a_stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from os import PathLike

    from twinkle_engines.models.transformers_model import TransformersModel

_log = logging.getLogger("twinkle")
_PREFIX = "checkpoint-"
_MANIFEST = "manifest.json"


class Stateful(Protocol):
    """An object with a state: a DataLoader, a Stream, a WeightSync, a TransformersSampler."""

    def state_dict(self) -> Any:
        """The state."""

    def load_state_dict(self, state: Any) -> object:
        """Take the state over."""


@with_known_names
def save(
    folder: str | PathLike[str],
    *,
    model: TransformersModel | None = None,
    loader: Stateful | None = None,
    sync: Stateful | None = None,
    stream: Stateful | None = None,
    sampler: Stateful | None = None,
    keep: int = 2,
) -> Path:
    """Write a checkpoint on the driver, and delete old ones.

    It has its name, which is returned, only once all of it is written: one that was interrupted is never found.

    Args:
        folder: Where the checkpoints are; the driver and all workers see it.
        model: Its weights, optimizer, schedule and generator; each rank writes its part.
        loader: Its position.
        sync: Its version.
        stream: The rows that are finished and at work, and its source's position.
        sampler: How far it has drawn: a run that goes on without a sync draws the same again without it.
        keep: Newest checkpoints that stay, at least 1.

    Raises:
        TypeError: If several models are given.
        ValueError: If `keep` is below 1, if gradients wait for the next `step` of the model, if nothing is given, or if
            a stream reads the loader: the stream's state holds the loader's.
    """
    parts = _given(loader=loader, sync=sync, stream=stream, sampler=sampler)
    if keep < 1 or (model is None and not parts):
        raise ValueError(
            f"save keeps at least 1 checkpoint of at least one of model, loader, sync, stream, sampler: keep={keep}"
        )
    _check_one(model)
    if loader is not None and is_read_by_a_stream(loader):
        raise ValueError(
            "a stream reads the loader, which is ahead of what was delivered: save(stream=...) without loader="
        )
    root = Path(folder).absolute()
    with agreed("saving the checkpoint"):
        root.mkdir(parents=True, exist_ok=True)
        number = max(map(_number, _complete(root)), default=0) + 1
        partial, final = root / f".{_PREFIX}{number:08d}", root / f"{_PREFIX}{number:08d}"
        if _writes():
            _remove(partial)
            _remove(final)  # a damaged one, or it would be the newest
    with _gone_after_a_failure(partial):
        if model is not None:
            get(model.save_state(str(partial / "model")))
        with agreed(f"saving the checkpoint {final}"):
            if _writes():
                partial.mkdir(exist_ok=True)
                for name, part in parts.items():
                    (partial / f"{name}.pkl").write_bytes(pickle.dumps(part.state_dict()))
                _write_manifest(partial)
                partial.replace(final)
                _flush(root)
                _prune(root, keep)
    return final


@contextmanager
def _gone_after_a_failure(partial: Path) -> Iterator[None]:
    """A block that writes a checkpoint: where it fails, what was written is removed, which may fill the disk."""
    try:
        yield
    except BaseException:
        if _writes():
            shutil.rmtree(partial, ignore_errors=True)
        raise


@with_known_names
def load(
    folder: str | PathLike[str],
    *,
    model: TransformersModel | None = None,
    loader: Stateful | None = None,
    sync: Stateful | None = None,
    stream: Stateful | None = None,
    sampler: Stateful | None = None,
) -> Path | None:
    """Read the newest whole checkpoint into the parts that are given, on any mesh.

    Where the newest one is damaged, the log says so, and the one before is read.

    Args:
        folder: Where the checkpoints are. They are pickled in part: read only those that you trust.
        model: As for `save`; its parameters are those of the one that was saved.
        loader: As for `save`.
        sync: As for `save`; the next sync publishes the next version.
        stream: As for `save`.
        sampler: As for `save`.

    Returns:
        The checkpoint's folder; None where there is none, and then nothing has changed.

    Raises:
        RuntimeError: There are checkpoints, and all of them are damaged.
        ValueError: The checkpoint has no state of a part, or is of another model or optimizer; nothing has changed.
    """
    root = Path(folder).absolute()
    parts = _given(loader=loader, sync=sync, stream=stream, sampler=sampler)
    damaged: dict[str, str] = {}
    for found in sorted(_numbered(root), key=_number, reverse=True) if root.is_dir() else []:
        if not _is_whole(found):
            damaged[found.name] = "files are missing, or have another size than when they were written"
            continue
        try:
            states = _read(found, model, parts)
        except (OSError, EOFError, pickle.UnpicklingError, RuntimeError) as error:  # not of another model
            damaged[found.name] = f"{type(error).__name__}: {error}"
            continue
        for name, state in states.items():
            parts[name].load_state_dict(state)
        if damaged:
            _log.warning("%s was read: of those after it %s", found, _listed(damaged))
        return found
    if damaged:
        raise RuntimeError(f"no checkpoint in {root} can be read: {_listed(damaged)}; remove them to begin anew")
    return None


def _given(**parts: Stateful | None) -> dict[str, Stateful]:
    return {name: part for name, part in parts.items() if part is not None}


def _check_one(model: object) -> None:
    if isinstance(model, list | tuple | dict):
        raise TypeError(
            f"save has one model, got a {type(model).__name__} of {len(model)}: save each into a folder of its own, "
            "and the loader, stream and sync with one of them"
        )


def _read(found: Path, model: TransformersModel | None, parts: Mapping[str, Stateful]) -> dict[str, Any]:
    """Read the model, and return the states of the other parts.

    Raises:
        ValueError: The checkpoint has no state of a part, or is of another model or optimizer.
    """
    asked = [*(["model"] if model is not None else []), *parts]
    missing = [name for name in asked if not (found / (name if name == "model" else f"{name}.pkl")).exists()]
    if missing:
        raise ValueError(
            f"{found} has no state of {', '.join(missing)}; save({', '.join(f'{n}=...' for n in missing)})"
        )
    with agreed("reading the checkpoint"):
        states = {name: _unpickled(found / f"{name}.pkl") for name in parts}
    if model is not None:
        get(model.load_state(str(found / "model")))
    return states


def _unpickled(file: Path) -> Any:
    try:
        return pickle.loads(file.read_bytes())
    except Exception as error:  # bytes that are damaged raise errors of many kinds
        raise RuntimeError(f"{file.name} cannot be read: {type(error).__name__}: {error}") from error


def _listed(damaged: Mapping[str, str]) -> str:
    return "; ".join(f"{name} is damaged ({why})" for name, why in damaged.items())


def _number(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix(_PREFIX))


def _numbered(root: Path) -> list[Path]:
    return [path for path in root.glob(f"{_PREFIX}*") if path.name.removeprefix(_PREFIX).isdigit()]


def _complete(root: Path) -> list[Path]:
    """The checkpoints whose files are all there, with the sizes that were written."""
    return [path for path in _numbered(root) if _is_whole(path)]


def _prune(root: Path, keep: int) -> None:
    """Remove all but the newest checkpoints, and what an interrupted save or removal has left."""
    kept = sorted(_complete(root), key=_number)[-keep:]
    for old in _numbered(root):
        if _number(old) < _number(kept[0]):
            _remove(old)
    for left in root.glob(f".{_PREFIX}*"):
        _remove(left)


def _remove(checkpoint: Path) -> None:
    """Remove a checkpoint, which is none from the first moment on."""
    if not checkpoint.exists():
        return
    hidden = checkpoint.parent / f".{checkpoint.name.lstrip('.')}.old"
    if checkpoint != hidden:
        shutil.rmtree(hidden, ignore_errors=True)
        checkpoint.replace(hidden)
    shutil.rmtree(hidden)


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
    return current_place().rank == 0
