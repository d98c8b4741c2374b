"""Sinks: where a loop's metrics go. A sink has one method, so a class of the user's own is one too."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinkle_remote import get

if TYPE_CHECKING:
    from collections.abc import Sequence


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


class Lines:
    """Lines of JSON in a file, each with its "step": what a resumed run repeats gives way."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.last: int | None = None

    def add(self, step: int, lines: Sequence[str]) -> None:
        """Append the lines of a step; those of that step or a later one go, and so does a line that was cut off."""
        if self.last is None or step <= self.last:
            kept, before = [], self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
            for line in before:
                with suppress(ValueError):  # a line that is not whole
                    if json.loads(line)["step"] < step:
                        kept.append(line)
            if len(kept) < len(before):
                fresh = self.path.with_name(f".{self.path.name}")
                fresh.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
                fresh.replace(self.path)
        self.append(lines)
        self.last = step

    def append(self, lines: Sequence[str]) -> None:
        """Append lines of the last step."""
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)


class JSONLSink:
    """One line of JSON a step, appended to a file: {"step": 1, "loss": 0.5}.

    A line of that step or a later one that is there already gives way: a run that was resumed logs each step once. What
    JSON has no number for is the text "NaN", "Infinity" or "-Infinity". Of several ranks let the first log.
    """

    def __init__(self, path: str | Path) -> None:
        self._lines = Lines(path)

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
        self._lines.add(step, [json.dumps({"step": step, **found})])


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
