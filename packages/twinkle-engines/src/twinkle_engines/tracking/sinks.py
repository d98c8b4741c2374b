"""Sinks: where a loop's metrics go. A sink has one method, so a class of the user's own is one too."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twinkle_remote import get


def numbers(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, float | int]:
    """The metrics as plain numbers by name: 0-d arrays and tensors, lazy ones too; mappings are named "outer/inner".

    Raises:
        TypeError: A metric is no number.
        ValueError: Two have one name, and one would be lost.
    """
    found: dict[str, float | int] = {}
    for key, value in get(metrics).items():
        name = f"{prefix}{key}"
        plain = value.item() if getattr(value, "shape", None) == () else value
        if not isinstance(plain, Mapping | int | float):
            raise TypeError(f"metric {name} is {value!r:.60}: a metric is a number, or a mapping of them")
        fresh = numbers(plain, f"{name}/") if isinstance(plain, Mapping) else {name: plain}
        if found.keys() & fresh.keys():
            raise ValueError(f"two metrics are named {name}, and one would be lost: use another name for one")
        found |= fresh
    return found


class JSONLSink:
    """One line of JSON a step, appended to a file: {"step": 1, "loss": 0.5}.

    What JSON has no number for is the text "NaN", "Infinity" or "-Infinity". Of several ranks let the first log.

    Args:
        path: The file; its folder is made.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Append a line.

        Args:
            metrics: As `numbers` takes them.
            step: Number of the step.

        Raises:
            ValueError: A metric is named "step", as the line's own number is.
        """
        found = {
            name: value if math.isfinite(value) else _TEXTS[str(value)] for name, value in numbers(metrics).items()
        }
        if "step" in found:
            raise ValueError('a metric is named "step", which is the number of the line: use another name for it')
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **found}) + "\n")


_TEXTS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class TensorBoardSink:
    """Scalars for TensorBoard. Those of an earlier run at the first step that is logged, and later, are not shown.

    Args:
        folder: Where the event file is written; `tensorboard --logdir` shows it.

    Raises:
        ImportError: tensorboard is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        self._library = importlib.import_module("torch.utils.tensorboard")
        self._folder = str(folder)
        self._writer: Any = None

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Write scalars; arguments as for `JSONLSink.log`."""
        if self._writer is None:
            self._writer = self._library.SummaryWriter(self._folder, purge_step=step)
        for name, value in numbers(metrics).items():
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
        self._run = importlib.import_module("wandb").init(**options)

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Log a step; arguments as for `JSONLSink.log`."""
        self._run.log(numbers(metrics), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()
