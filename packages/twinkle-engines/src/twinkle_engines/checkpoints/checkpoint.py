"""Checkpoints of a training: model, loader, stream and version in one folder, written whole or not at all."""

from __future__ import annotations

import json
import logging
import os
import pickle
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from twinkle_engines.batches.given import whole
from twinkle_engines.checkpoints.agreed import agreed
from twinkle_engines.checkpoints.file_digests import DIGESTS, digest
from twinkle_engines.checkpoints.replaced_folder import folder_path
from twinkle_mesh import with_known_names
from twinkle_remote import current_place, get
from twinkle_remote.backends.support import is_read_by_a_stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from os import PathLike
    from pathlib import Path

    from twinkle_engines.models.transformers_model import TransformersModel

_log = logging.getLogger("twinkle")
_PREFIX = "checkpoint-"
_MANIFEST = "manifest.json"


@runtime_checkable
class Stateful(Protocol):
    """An object with a state: a DataLoader, a Stream, a WeightSync, a TransformersSampler."""

    def state_dict(self) -> Any:
        """The state."""

    def load_state_dict(self, state: Any) -> object:
        """Take the state over."""


@runtime_checkable
class _StatefulModel(Protocol):
    """A model whose ranks write and read their parts of its state, as TransformersModel."""

    def save_state(self, folder: str) -> Any:
        """Write the state."""

    def load_state(self, folder: str) -> Any:
        """Read what `save_state` wrote."""


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
        TypeError: If several models are given, or something has no state.
        ValueError: If `keep` is below 1, if gradients wait for the next `step` of the model, if nothing is given, or if
            a stream reads the loader: the stream's state holds the loader's.
    """
    parts = _given("save", model, loader=loader, sync=sync, stream=stream, sampler=sampler)
    newest = whole("keep", keep, 1)
    if loader is not None and is_read_by_a_stream(loader):
        raise ValueError(
            "a stream reads the loader, which is ahead of what was delivered: save(stream=...) without loader="
        )
    root = folder_path("folder", folder).absolute()
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
                _prune(root, newest)
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
        folder: Where the checkpoints are, or the one to read, as `save` returns it. They are pickled in part: read only
            those that you trust.
        model: As for `save`; its parameters are those of the one that was saved.
        loader: As for `save`.
        sync: As for `save`; the next sync publishes the next version.
        stream: As for `save`.
        sampler: As for `save`.

    Returns:
        The checkpoint's folder; None where there is none, and then nothing has changed.

    Raises:
        RuntimeError: There are checkpoints, and all of them are damaged.
        TypeError: Something has no state.
        ValueError: Nothing is given to read into, or there is a file in place of the folder.
        ValueError: The checkpoint has no state of a part, or is of another model or optimizer; nothing has changed.
    """
    root = folder_path("folder", folder).absolute()
    parts = _given("load", model, loader=loader, sync=sync, stream=stream, sampler=sampler)
    damaged: dict[str, str] = {}
    for found in _to_read(root):
        if not _is_whole(found, bytewise=True):
            damaged[found.name] = "files are missing, or are others than were written"
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


def _given(what: str, model: object, **parts: Stateful | None) -> dict[str, Stateful]:
    """The parts that are not None.

    Raises:
        TypeError: One has no state.
        ValueError: There is none, nor a model.
    """
    if isinstance(model, list | tuple | dict):
        raise TypeError(
            f"{what} has one model, got a {type(model).__name__} of {len(model)}: use a folder of its own for each, "
            "and the loader, stream and sync with one of them"
        )
    if model is not None and (isinstance(model, type) or not isinstance(model, _StatefulModel)):
        raise TypeError(
            f"model has no state to {what}, got {model!r:.60} of type {type(model).__name__}; use a TransformersModel, "
            "or torch.save for a plain one"
        )
    found = {name: part for name, part in parts.items() if part is not None}
    for name, part in found.items():
        if isinstance(part, type) or not isinstance(part, Stateful):
            raise TypeError(
                f"{name} has no state to {what}, got {part!r:.60} of type {type(part).__name__}; use an object with "
                "state_dict() and load_state_dict()"
            )
    if model is None and not found:
        raise ValueError(f"{what} has nothing to {what}: use at least one of model, {', '.join(parts)}")
    return found


def _to_read(root: Path) -> list[Path]:
    """The checkpoints in a folder, newest first; or the folder itself, which is one.

    Raises:
        ValueError: It is a file.
    """
    if root.exists() and not root.is_dir():
        raise ValueError(f"folder is {root}, a file: use the folder that save() was given")
    found = sorted(_numbered(root), key=_number, reverse=True)
    is_one = root.is_dir() and (_is_numbered(root) or (root / _MANIFEST).exists())
    return [root] if is_one and not found else found


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
    return [path for path in root.glob(f"{_PREFIX}*") if _is_numbered(path)]


def _is_numbered(path: Path) -> bool:
    number = path.name.removeprefix(_PREFIX)
    return number != path.name and number.isdecimal() and number.isascii()


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


def _is_whole(checkpoint: Path, bytewise: bool = False) -> bool:
    """Whether all files are there with their sizes, and those that the driver wrote with their bytes."""
    try:
        files = json.loads((checkpoint / _MANIFEST).read_text(encoding="utf-8"))
        for name, written in files.items():
            size, crc = written if isinstance(written, list) else (written, None)
            file = checkpoint / name
            if file.stat().st_size != size or (bytewise and crc is not None and digest(file) != crc):
                return False
    except (OSError, ValueError, AttributeError):
        return False
    return True


def _write_manifest(checkpoint: Path) -> None:
    """List the files with their sizes, once they are on the disk; the ranks' own have their digests with them."""
    files = [path for path in sorted(checkpoint.rglob("*")) if path.is_file()]
    for path in files:
        _flush(path)
    written = {
        path.relative_to(checkpoint).as_posix(): [
            path.stat().st_size,
            digest(path) if path.parent == checkpoint or path.name == DIGESTS else None,
        ]
        for path in files
    }
    (checkpoint / _MANIFEST).write_text(json.dumps(written), encoding="utf-8")
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
