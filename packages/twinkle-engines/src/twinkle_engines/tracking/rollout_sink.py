"""RolloutSink: what was sampled, as lines of JSON that `twinkle rollouts` makes a page of."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import torch

from twinkle_engines.tracking.sinks import Lines
from twinkle_remote import get

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedTokenizerBase

    from twinkle_engines.batches.rollouts import Rollouts


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
