"""Sinks: where a loop's metrics go. A sink has one method, so a class of the user's own is one too."""

from __future__ import annotations

import importlib
import json
import math
import os
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from twinkle_engines.batches.given import fraction, whole
from twinkle_engines.checkpoints.replaced_folder import folder_path
from twinkle_remote import get

if TYPE_CHECKING:
    from pathlib import Path


class Sink(Protocol):
    """Takes metrics."""

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Take the metrics of one step.

        Args:
            metrics: Numbers, 0-d arrays and tensors by name, lazy ones too; mappings of them are named "outer/inner".
            step: Number of the step.
        """


def numbers(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, float | int]:
    """The metrics as plain numbers by name, mappings in them named "outer/inner".

    Raises:
        TypeError: A metric is no number.
        ValueError: Two have one name, or one is beyond the numbers of 64 bits.
    """
    plain = get(metrics)
    if not isinstance(plain, Mapping):
        raise TypeError(f"metrics is a mapping of numbers by name, got {plain!r:.60} of type {type(plain).__name__}")
    found: dict[str, float | int] = {}
    for key, value in plain.items():
        name = f"{prefix}{key}"
        fresh = numbers(value, f"{name}/") if isinstance(value, Mapping) else {name: _number(name, value)}
        twice = next(iter(found.keys() & fresh.keys()), None)
        if twice is not None:
            raise ValueError(f"two metrics are named {twice}, and one would be lost: use another name for one")
        found |= fresh
    return found


def _number(name: str, value: Any) -> float | int:
    try:
        plain = value.item() if hasattr(value, "item") else value
    except (RuntimeError, ValueError):  # more than one element
        plain = value
    if isinstance(plain, bool | int | float):
        fraction(f"metric {name}", float(plain) if isinstance(plain, bool) else plain)
        return plain
    raise TypeError(
        f"metric {name} is a {type(value).__name__}: a metric is a number, a 0-d array or tensor, or a mapping of them"
    )


def _step(step: Any) -> int:
    """The number of a step.

    Raises:
        TypeError: It is no whole number.
        ValueError: It is no number of 64 bits.
    """
    found = whole("step", step)
    if not -(2**63) <= found < 2**63:
        raise ValueError(f"step is a number of 64 bits, got {step}")
    return found


class JSONLSink:
    """One line of JSON a step, appended to a file: {"step": 1, "loss": 0.5}.

    A line is written whole and at once. What JSON has no number for is the text "NaN", "Infinity" or "-Infinity". Lines
    of an earlier run give way to a run that was resumed: those of the first step that is logged, and of later ones.

    A file has one sink at a time, since two would take each other's lines: the first line locks it, until `close`, or
    until the sink is gone.

    Args:
        path: The file; its folder is made.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = folder_path("path", path)
        if self._path.is_dir():
            raise ValueError(f"path is {str(path)!r}, a folder: use a file in it")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._release: Callable[[], object] | None = None

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Append a line; see `Sink.log`.

        Raises:
            TypeError: A metric is no number, or the step no whole number.
            ValueError: A metric is named "step", as the line's own number is; another sink has the file; or see
                `numbers`.
        """
        step = _step(step)
        found = {name: _in_json(value) for name, value in numbers(metrics).items()}
        if "step" in found:
            raise ValueError('a metric is named "step", which is the number of the line: use another name for it')
        if self._release is None:
            self._begin(step)
        line = json.dumps({"step": step, **found}, allow_nan=False)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def close(self) -> None:
        """Let another sink have the file; a line that is logged afterwards begins as that of a new sink."""
        if self._release is not None:
            self._release()
            self._release = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_release": None}

    def _begin(self, step: int) -> None:
        lock = _locked(self._path)
        try:
            if self._leave_out(step):  # the file is another one now
                lock, before = _locked(self._path), lock
                os.close(before)
        except BaseException:
            os.close(lock)
            raise
        self._release = weakref.finalize(self, os.close, lock)

    def _leave_out(self, step: int) -> bool:
        """Take the lines of this step and later ones off, of a run that was resumed before them; whether there were."""
        lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line if line.endswith("\n") else f"{line}\n" for line in lines if _step_of(line) < step]
        if kept != lines:
            fresh = self._path.with_name(f".{self._path.name}.new")
            fresh.write_text("".join(kept), encoding="utf-8")
            fresh.replace(self._path)
        return kept != lines


def _locked(path: Path) -> int:
    """A descriptor of a file, which is made, and which is locked while that is open, on hosts that have locks.

    Raises:
        ValueError: Another sink of this process, or of another, has locked it.
    """
    opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        import fcntl

        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(opened)
        raise ValueError(
            f"another sink writes to {path}, here or in another process, and each would take lines of the other: log "
            "to that one, close() it, or use a file for each; of several ranks let the first log"
        ) from None
    except (ImportError, OSError):  # a file system without locks
        pass
    return opened


def _step_of(line: str) -> float:
    """The step of a line; above all others of one that was cut, below them where it has none."""
    try:
        return float(json.loads(line)["step"])
    except ValueError:
        return -math.inf if line.endswith("\n") else math.inf
    except (TypeError, KeyError):
        return -math.inf


def _in_json(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


class TensorBoardSink:
    """Scalars for TensorBoard. Those of an earlier run at the first step that is logged, and later, are not shown.

    Args:
        folder: Where the event file is written; `tensorboard --logdir` shows it.

    Raises:
        ImportError: tensorboard is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        self._library = _library("torch.utils.tensorboard", "tensorboard")
        self._folder = str(folder)
        self._writer: Any = None

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Write scalars; see `Sink.log`."""
        step, found = _step(step), numbers(metrics)
        if self._writer is None:
            self._writer = self._library.SummaryWriter(self._folder, purge_step=step)
        for name, value in found.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()


class WandbSink:
    """Metrics for Weights & Biases.

    Args:
        options: As for `wandb.init`, such as project, name, or mode="offline".

    Raises:
        ImportError: wandb is not installed.
    """

    def __init__(self, **options: Any) -> None:
        self._run = _library("wandb").init(**options)

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Log a step; see `Sink.log`."""
        self._run.log(numbers(metrics), step=_step(step))

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class MLflowSink:
    """Metrics for MLflow.

    Args:
        options: As for `mlflow.start_run`, such as run_name.

    Raises:
        ImportError: mlflow is not installed.
    """

    def __init__(self, **options: Any) -> None:
        self._mlflow = _library("mlflow")
        self._run = self._mlflow.start_run(**options)

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Log a step; see `Sink.log`."""
        self._mlflow.log_metrics(numbers(metrics), step=_step(step), run_id=self._run.info.run_id)

    def close(self) -> None:
        """End the run."""
        self._mlflow.end_run()


def _library(module: str, package: str | None = None) -> Any:
    """A library that a sink needs.

    Raises:
        ImportError: It is not installed; the message names the install.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = package or module
        raise ImportError(f"this sink needs {name}, which is not installed: pip install {name}", name=name) from error
