"""Checkpoints of a training: model, loader, stream and version in one folder, complete or absent.

Invariant: a folder named checkpoint-N is complete. `save` writes a hidden folder, flushes it, and then renames it.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from twinkle_remote import current_place, get
from twinkle_remote.backends.support import is_read_by_a_stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from os import PathLike

    from twinkle_engines.models.transformers_model import TransformersModel

_PREFIX = "checkpoint-"
_PARTS = "parts.json"
"""The file that tells a checkpoint from another folder: the parts that it has."""
_OF_MODELS = ("config.json", "adapter_config.json", "*.safetensors", "*.bin", "*.distcp", "*.pt", "*.pth")


class Stateful(Protocol):
    """An object with a state: a DataLoader, a Stream, a WeightSync, a TransformersSampler."""

    def state_dict(self) -> Any:
        """The state."""

    def load_state_dict(self, state: Any) -> object:
        """Take the state over."""


@contextmanager
def agreed(what: str) -> Iterator[None]:
    """A block of work without collectives: all ranks leave it with an error where one has failed in it.

    It waits for all ranks of the default process group.

    Args:
        what: The work, for the error, as in "writing the schedule".

    Raises:
        Exception: The rank's own.
        RuntimeError: Another rank has failed; the error names it. ValueError where its error is one.
    """
    import torch.distributed as dist

    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    failures: list[tuple[str, bool] | None] = []
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        failures = [None] * dist.get_world_size()
        mine = None if failure is None else (f"{type(failure).__name__}: {failure}", isinstance(failure, ValueError))
        dist.all_gather_object(failures, mine)
    if failure is not None:
        raise failure
    for rank, other in enumerate(failures):
        if other is not None:
            raise (ValueError if other[1] else RuntimeError)(f"{what} failed on rank {rank}: {other[0]}")


def save(
    folder: str | PathLike[str],
    *,
    models: Mapping[str, TransformersModel] | None = None,
    loader: Stateful | None = None,
    stream: Stateful | None = None,
    sync: Stateful | None = None,
    sampler: Stateful | None = None,
    keep: int = 2,
    **state: TransformersModel | Stateful,
) -> Path:
    """Write a checkpoint on the driver, and delete old ones.

    It has its name, which is returned, only once all of it is written: one that was interrupted is never found.

    Args:
        folder: Where the checkpoints are; the driver and all workers see it. What save() did not write is left alone.
        models: Models by name: weights, optimizer, schedule and generators; each rank writes its part.
        loader: Its position.
        stream: The rows that are finished and at work, and its source's position.
        sync: Its version.
        sampler: How far it has drawn: a run that goes on without a sync draws the same again without it.
        keep: Newest checkpoints that stay, at least 1.
        state: Further parts by name: a model, such as `model=`, or anything with `state_dict` and `load_state_dict`.

    Raises:
        TypeError: A part is none.
        ValueError: If `keep` is below 1, if gradients wait for the next `step` of a model, if nothing is given, if two
            parts have one name, or if a stream reads the loader: the stream's state holds the loader's.
    """
    given = {"loader": loader, "stream": stream, "sync": sync, "sampler": sampler}
    own, parts = _parts(models, {**given, **state})
    if keep < 1 or not (own or parts):
        raise ValueError(f"save keeps at least 1 checkpoint of at least one part, got keep={keep} and {sorted(parts)}")
    if loader is not None and is_read_by_a_stream(loader):
        raise ValueError(
            "a stream reads the loader, which is ahead of what was delivered: save(stream=...) without loader="
        )
    root = Path(folder).absolute()
    with agreed("saving the checkpoint"):
        root.mkdir(parents=True, exist_ok=True)
        number = max(map(_number, _named(root)), default=0) + 1
        partial, final = root / f".{_PREFIX}{number:08d}", root / f"{_PREFIX}{number:08d}"
        if _writes():
            shutil.rmtree(partial, ignore_errors=True)
    for name, model in own.items():
        get(model.save_state(str(partial / name)))
    with agreed(f"saving the checkpoint {final}"):
        if _writes():
            partial.mkdir(exist_ok=True)
            for name, part in parts.items():
                (partial / f"{name}.pkl").write_bytes(pickle.dumps(get(part.state_dict())))
            (partial / _PARTS).write_text(json.dumps([*own, *parts]), encoding="utf-8")
            for path in (*partial.rglob("*"), partial):
                _flush(path)
            partial.replace(final)
            _flush(root)
            _prune(root, keep)
    return final


def load(
    folder: str | PathLike[str],
    *,
    models: Mapping[str, TransformersModel] | None = None,
    loader: Stateful | None = None,
    stream: Stateful | None = None,
    sync: Stateful | None = None,
    sampler: Stateful | None = None,
    **state: TransformersModel | Stateful,
) -> Path | None:
    """Read the newest checkpoint into the parts that are given, on any mesh.

    Args:
        folder: Where the checkpoints are, or the one to read, as `save` returns it. They are pickled in part: read only
            those that you trust.
        models: As for `save`; their parameters are those of the ones that were saved. What the program says of their
            optimizers and schedules holds, and what differs from the checkpoint is said.
        loader: As for `save`.
        stream: As for `save`.
        sync: As for `save`; the next sync publishes the next version.
        sampler: As for `save`.
        state: As for `save`.

    Returns:
        The checkpoint's folder; None where there is none, and then nothing has changed.

    Raises:
        TypeError: A part is neither a model nor has a state.
        ValueError: Nothing is given to read into; the folder is a file, or holds a model and no checkpoint; or the
            checkpoint has no state of a part, or is of another model or optimizer: nothing has changed then.
    """
    own, parts = _parts(models, {"loader": loader, "stream": stream, "sync": sync, "sampler": sampler, **state})
    if not own and not parts:
        raise ValueError("load has nothing to load into: use at least one of models, loader, stream, sync, sampler")
    found = _newest(Path(folder).absolute())
    if found is None:
        return None
    with agreed("reading the checkpoint"):
        there = json.loads((found / _PARTS).read_text(encoding="utf-8"))
        if missing := {*own, *parts} - {*there}:
            raise ValueError(f"{found} has no state of {', '.join(sorted(missing))}, but of {', '.join(there)}")
        states = {name: pickle.loads((found / f"{name}.pkl").read_bytes()) for name in parts}
    for name, model in own.items():
        get(model.load_state(str(found / name)))
    for name, one in states.items():
        get(parts[name].load_state_dict(one))
    return found


def _parts(
    models: Mapping[str, TransformersModel] | None, state: Mapping[str, Any]
) -> tuple[dict[str, TransformersModel], dict[str, Stateful]]:
    """The models by name, and the other parts by name."""
    own = dict(models or {})
    parts = {}
    for name, part in state.items():
        if part is None:
            continue
        if name in own:
            raise ValueError(f"two parts are named {name!r}, of which one would be lost: use another name")
        if hasattr(part, "save_state") and hasattr(part, "load_state"):
            own[name] = part
        elif hasattr(part, "state_dict") and hasattr(part, "load_state_dict"):
            parts[name] = part
        else:
            raise TypeError(
                f"{name}= is a {type(part).__name__}, which has no state: use a model, or what has state_dict and "
                "load_state_dict"
            )
    return own, parts


def _newest(root: Path) -> Path | None:
    """The newest checkpoint in a folder; or the folder itself, which is one.

    Raises:
        ValueError: It is a file, or a folder with something else.
    """
    if (root / _PARTS).exists():
        return root
    found = max(_checkpoints(root), key=_number, default=None)
    is_other = root.is_file() or root.name.startswith(_PREFIX) or bool(_named(root))
    is_other = is_other or any(any(root.glob(one)) for one in _OF_MODELS)
    if found is None and root.exists() and is_other:
        raise ValueError(f"{root} is no checkpoint, and no folder of such: use the folder that save() was given")
    return found


def _number(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix(_PREFIX))


def _named(root: Path) -> list[Path]:
    """Folders that have a checkpoint's name, those of other tools too."""
    return [path for path in root.glob(f"{_PREFIX}*") if path.name.removeprefix(_PREFIX).isdecimal() and path.is_dir()]


def _checkpoints(root: Path) -> list[Path]:
    """Those that `save` has written."""
    return [path for path in _named(root) if (path / _PARTS).exists()]


def _prune(root: Path, keep: int) -> None:
    """Remove all but the newest checkpoints, and what an interrupted save or removal has left.

    A checkpoint that goes is hidden first, so that it is none from the first moment on.
    """
    for old in sorted(_checkpoints(root), key=_number)[:-keep]:
        hidden = root / f".{old.name}.old"
        shutil.rmtree(hidden, ignore_errors=True)
        old.replace(hidden)
    for left in root.glob(f".{_PREFIX}????????*"):
        shutil.rmtree(left)


def _flush(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _writes() -> bool:
    """Whether this process writes for all that run the same: under a launcher every process is the driver."""
    return current_place().rank == 0
