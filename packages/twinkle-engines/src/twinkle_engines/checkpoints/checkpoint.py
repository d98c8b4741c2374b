"""Checkpoints of a training: model, loader, stream and version in one folder, complete or absent.

Invariant: a folder that has a checkpoint's name and its parts.json is complete. It is written as a hidden folder,
flushed, and then renamed. `save` numbers them (checkpoint-00000001), `Checkpoints` names their steps (step-000120).
"""

from __future__ import annotations

import json
import math
import os
import pickle
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinkle_remote import current_place, get
from twinkle_remote.backends.support import is_read_by_a_stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from os import PathLike

    from twinkle_engines.models.transformers_model import TransformersModel

_PREFIX, _STEP, _REPLACED = "checkpoint-", "step-", ".replaced"
_PARTS = "parts.json"
"""The file that tells a checkpoint from another folder: the parts that it has, and the metrics of its step."""
_OF_MODELS = ("config.json", "adapter_config.json", "*.safetensors", "*.bin", "*.distcp", "*.pt", "*.pth")


@contextmanager
def agreed(what: str) -> Iterator[None]:
    """A block of work without collectives: all ranks leave it with an error where one has failed in it.

    It waits for all ranks of the default process group.

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
    keep: int = 2,
    **parts: Any,
) -> Path:
    """Write a checkpoint on the driver, and delete old ones.

    It has its name, which is returned, only once all of it is written: one that was interrupted is never found.

    Args:
        folder: Where the checkpoints are; the driver and all workers see it. What save() did not write is left alone.
        models: Models by name: weights, optimizer, schedule and generators; each rank writes its part.
        keep: Newest checkpoints that stay, at least 1.
        parts: Further ones by name: a model, such as `model=`, or anything with `state_dict` and `load_state_dict`.
            `loader=` has its position; `stream=` the rows that are finished and at work, and its source's position;
            `sync=` its version; `sampler=` how far it has drawn: a run that goes on without a sync draws the same again
            without it.

    Raises:
        TypeError: A part is none.
        ValueError: If `keep` is below 1, if gradients wait for the next `step` of a model, if nothing is given, if two
            parts have one name, or if a stream reads the loader: the stream's state holds the loader's.
    """
    held = _Parts(models, parts, keep)
    root = Path(folder).absolute()
    with agreed("saving the checkpoint"):
        number = max(map(_number, _named(root, _PREFIX)), default=0) + 1
    final = held.write(root / f"{_PREFIX}{number:08d}", {})
    with agreed("removing old checkpoints"):
        _prune(root, _checkpoints(root, _PREFIX)[:-keep])
    return final


def load(
    folder: str | PathLike[str],
    *,
    models: Mapping[str, TransformersModel] | None = None,
    **parts: Any,
) -> Path | None:
    """Read the newest checkpoint into the parts that are given, on any mesh.

    Args:
        folder: Where the checkpoints are, or the one to read, as `save` returns it. They are pickled in part: read only
            those that you trust.
        models: As for `save`; their parameters are those of the ones that were saved. What the program says of their
            optimizers and schedules holds, and what differs from the checkpoint is said.
        parts: As for `save`. Rows of a stream that were not delivered are made again; the next sync publishes the next
            version.

    Returns:
        The checkpoint's folder; None where there is none, and then nothing has changed.

    Raises:
        TypeError: A part is neither a model nor has a state.
        ValueError: Nothing is given to read into; the folder is a file, or holds a model and no checkpoint; or the
            checkpoint has no state of a part, or is of another model or optimizer: nothing has changed then.
    """
    held = _Parts(models, parts)
    found = _newest(Path(folder).absolute())
    if found is not None:
        held.read(found)
    return found


class Checkpoints:
    """Checkpoints of the steps of one training: the last ones, and the best.

    A program that saves every n steps resumes with the same lines that began it; `load(checkpoints.best, ...)` reads
    the best one.

    Args:
        folder: As for `save`.
        keep: Newest steps that stay, at least 1.
        best: The metric by which one more stays: "reward" keeps the largest, "-loss" the smallest; None for none.
        parts: As for `save`, by name: models, loader=, stream=, sync=, and anything with a state.

    Raises:
        TypeError: A part is neither a model nor has a state.
        ValueError: As for `save`.
    """

    def __init__(self, folder: str | PathLike[str], *, keep: int = 3, best: str | None = None, **parts: Any) -> None:
        self._root, self._keep, self._metric = Path(folder).absolute(), keep, best
        self._parts = _Parts(parts.pop("models", None), parts, keep)
        with agreed("looking for checkpoints"):
            for left in self._root.glob(f".{_STEP}*{_REPLACED}") if _writes() else ():  # interrupted while it gave way
                final = self._root / left.name[1:].removesuffix(_REPLACED)
                shutil.rmtree(left) if final.exists() else left.replace(final)

    def save(self, step: int, **metrics: Any) -> Path:
        """Write the checkpoint of a step, which takes the place of one that is there, and delete others.

        Args:
            step: Its number.
            metrics: Of the step, lazy ones too, with that of `best`; a value that is not finite is never the best.

        Raises:
            ValueError: The metric of `best` is missing, or as for `save`.
        """
        found = {name: float(get(value)) for name, value in metrics.items()}
        if self._metric is not None and self._metric.removeprefix("-") not in found:
            raise ValueError(f"best={self._metric!r} needs that metric: save(step, {self._metric.lstrip('-')}=...)")
        final = self._parts.write(self._root / f"{_STEP}{step:06d}", found)
        with agreed("removing old checkpoints"):
            best = self.best
            _prune(self._root, [one for one in _checkpoints(self._root, _STEP)[: -self._keep] if one != best])
        return final

    def resume(self) -> int | None:
        """Read the last step into the parts, and return it; None where there is nothing. Errors as for `load`."""
        if not self.steps:
            return None
        self._parts.read(_checkpoints(self._root, _STEP)[-1])
        return self.steps[-1]

    @property
    def best(self) -> Path | None:
        """The step with the best metric, the earliest of equals; None without one."""
        if self._metric is None:
            return None
        name, sign = self._metric.removeprefix("-"), -1.0 if self._metric.startswith("-") else 1.0
        values: dict[Path, float] = {}
        for path in _checkpoints(self._root, _STEP):
            value = json.loads((path / _PARTS).read_text(encoding="utf-8"))["metrics"].get(name, math.nan)
            if math.isfinite(value):
                values[path] = sign * value
        return max(values, key=lambda path: values[path], default=None)

    @property
    def steps(self) -> list[int]:
        """The steps that are there, in their order."""
        return [_number(path) for path in _checkpoints(self._root, _STEP)]


class _Parts:
    """The parts of a checkpoint by name: models, and others with a state.

    Raises:
        TypeError: A part is neither.
        ValueError: There is none, two have one name, or fewer than 1 checkpoint would stay.
    """

    def __init__(self, models: Mapping[str, TransformersModel] | None, state: Mapping[str, Any], keep: int = 1) -> None:
        self._models = dict(models or {})
        self._others: dict[str, Any] = {}
        for name, part in state.items():
            if part is None:
                continue
            if name in self._models:
                raise ValueError(f"two parts are named {name!r}, of which one would be lost: use another name")
            if hasattr(part, "save_state") and hasattr(part, "load_state"):
                self._models[name] = part
            elif hasattr(part, "state_dict") and hasattr(part, "load_state_dict"):
                self._others[name] = part
            else:
                raise TypeError(
                    f"{name}= is a {type(part).__name__}, which has no state: use a model, or what has state_dict and "
                    "load_state_dict"
                )
        if keep < 1 or not (self._models or self._others):
            raise ValueError(f"a checkpoint has nothing to load or to save, or keep={keep} is below 1: name its parts")

    def write(self, final: Path, metrics: Mapping[str, float]) -> Path:
        """Write all parts; one of that name gives way once the new one is complete."""
        loader = self._others.get("loader")
        if loader is not None and is_read_by_a_stream(loader):
            raise ValueError(
                "a stream reads the loader, which is ahead of what was delivered: save(stream=...) without loader="
            )
        root, partial = final.parent, final.parent / f".{final.name}"
        with agreed("saving the checkpoint"):
            root.mkdir(parents=True, exist_ok=True)
            if _writes():
                shutil.rmtree(partial, ignore_errors=True)
        for name, model in self._models.items():
            get(model.save_state(str(partial / name)))
        with agreed(f"saving the checkpoint {final}"):
            if _writes():
                partial.mkdir(exist_ok=True)
                for name, part in self._others.items():
                    (partial / f"{name}.pkl").write_bytes(pickle.dumps(get(part.state_dict())))
                about = {"parts": [*self._models, *self._others], "metrics": metrics}
                (partial / _PARTS).write_text(json.dumps(about), encoding="utf-8")
                for path in (*partial.rglob("*"), partial):
                    _flush(path)
                before = root / f".{final.name}{_REPLACED}"
                if final.exists():
                    final.replace(before)
                partial.replace(final)
                _flush(root)
                shutil.rmtree(before, ignore_errors=True)
        return final

    def read(self, path: Path) -> None:
        """Read all parts of a checkpoint."""
        with agreed("reading the checkpoint"):
            there = json.loads((path / _PARTS).read_text(encoding="utf-8"))["parts"]
            if missing := {*self._models, *self._others} - {*there}:
                raise ValueError(f"{path} has no state of {', '.join(sorted(missing))}, but of {', '.join(there)}")
            states = {name: pickle.loads((path / f"{name}.pkl").read_bytes()) for name in self._others}
        for name, model in self._models.items():
            get(model.load_state(str(path / name)))
        for name, one in states.items():
            get(self._others[name].load_state_dict(one))


def _newest(root: Path) -> Path | None:
    """The newest checkpoint in a folder; or the folder itself, which is one.

    Raises:
        ValueError: It is a file, or a folder with something else.
    """
    if (root / _PARTS).exists():
        return root
    found = _checkpoints(root, _PREFIX) or _checkpoints(root, _STEP)
    is_other = root.is_file() or root.name.startswith(_PREFIX) or bool(_named(root, _PREFIX))
    is_other = is_other or any(any(root.glob(one)) for one in _OF_MODELS)
    if not found and root.exists() and is_other:
        raise ValueError(f"{root} is no checkpoint, and no folder of such: use the folder that save() was given")
    return found[-1] if found else None


def _number(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def _named(root: Path, prefix: str) -> list[Path]:
    """Folders that have a checkpoint's name, those of other tools too."""
    return [path for path in root.glob(f"{prefix}*") if path.name.removeprefix(prefix).isdecimal() and path.is_dir()]


def _checkpoints(root: Path, prefix: str) -> list[Path]:
    """Those that were written here, in their order."""
    return sorted((path for path in _named(root, prefix) if (path / _PARTS).exists()), key=_number)


def _prune(root: Path, old: list[Path]) -> None:
    """Remove checkpoints, and what an interrupted save or removal has left."""
    if _writes():
        for path in old:  # hidden first, so that it is none from the first moment on
            shutil.rmtree(root / f".{path.name}.old", ignore_errors=True)
            path.replace(root / f".{path.name}.old")
        for left in (*root.glob(f".{_PREFIX}????????*"), *root.glob(f".{_STEP}??????*")):
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
