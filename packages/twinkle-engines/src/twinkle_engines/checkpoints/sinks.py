"""Sinks: where a loop's metrics and what was sampled go. A sink has one method, so a class of the user's own is one."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from twinkle_remote import get

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerBase

    from twinkle_engines.batches.rollouts import Rollouts


def numbers(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, float | int]:
    """The metrics as plain numbers by name: 0-d arrays and tensors, lazy ones too; mappings are named "outer/inner".

    Raises:
        TypeError: A metric is no number.
    """
    found: dict[str, float | int] = {}
    for key, value in get(metrics).items():
        name = f"{prefix}{key}"
        plain = value.item() if getattr(value, "shape", None) == () else value
        if not isinstance(plain, Mapping | int | float):
            raise TypeError(f"metric {name} is {value!r:.60}: a metric is a number, or a mapping of them")
        found |= numbers(plain, f"{name}/") if isinstance(plain, Mapping) else {name: plain}
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
            step: Number of the step; a metric of the name "step" gives way to it.
        """
        found = {
            name: value if math.isfinite(value) else _TEXTS[str(value)] for name, value in numbers(metrics).items()
        }
        self._lines.add(step, [json.dumps({"step": step, **found} | {"step": step})])


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


class RolloutSink:
    """A line of JSON for each row: {"step": 1, "prompt": ..., "row": {...}, "sequences": [{...}, ...]}.

    A sequence has its completion, its reward, its columns, and from its first counted token on the columns by token.
    Numbers have four digits. Rows of that step or a later one that another sink has logged before give way.

    Args:
        path: The file; its folder is made.
        tokenizer: Writes tokens as texts; without it they are ids.
    """

    def __init__(self, path: str | Path, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        self._lines, self._tokenizer = Lines(path), tokenizer

    def log(self, rollouts: Rollouts, step: int) -> None:
        """Append the rows of some rollouts, lazy ones too; several calls may log one step."""
        found = get(rollouts)
        lines = [json.dumps({"step": step, **self._row(row)}, separators=(",", ":")) for row in found]
        if self._lines.last == step:
            self._lines.append(lines)
        else:
            self._lines.add(step, lines)

    def _row(self, row: Rollouts) -> dict[str, Any]:
        rewards = None if row.rewards is None else row.sequence_rewards().tolist()
        return {
            "prompt": _plain(None if row.prompts is None else row.prompts[0]),
            "row": {name: _plain(row.column(name)[0]) for name in row.columns},
            "sequences": [
                {
                    **{name: _plain(row.column(name)[i]) for name in row.sequences},
                    **({} if rewards is None else {"reward": _plain(rewards[i])}),
                    "tokens": self._tokens(row, i),
                }
                for i in range(len(row.lengths))
            ],
        }

    def _tokens(self, row: Rollouts, i: int) -> dict[str, list[Any]]:
        """The columns by token that are numbers, from the first token that counts on, and the tokens themselves."""
        masks = row.mask
        counted = row.ids[i].new_ones(row.lengths[i]).bool() if masks is None else masks[i].bool()
        start = int(counted.nonzero()[0]) if bool(counted.any()) else len(counted)
        made = {}
        for name in row.tokens:
            values = row.column(name)[i]
            if name != "ids" and isinstance(values, torch.Tensor) and values.dim() == 1:
                made[name] = _plain(values[start:])
        ids = row.ids[i][start:].tolist()
        texts = ids if self._tokenizer is None else [self._tokenizer.decode([one]) for one in ids]
        return {"text": texts, **made}


def _plain(value: Any) -> Any:
    """A value as JSON has it: numbers with four digits, None for what is not finite, else its text."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    return value if isinstance(value, str | int | bool | None) else str(value)
