"""Rollouts as a text that a person can read."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from twinkle_engines.batches.columns import is_missing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_ROWS = 3
_WIDTH = 100


def sizes(
    tokens: Mapping[str, Any], lengths: Sequence[int], counts: Sequence[int], finish: Sequence[str] | None
) -> list[str]:
    """The sizes of rollouts, and means where the columns are there; in a call they may be slots."""
    parts = [_many(len(counts), "row"), _many(len(lengths), "sequence"), _many(sum(lengths), "token")]
    if lengths:
        parts[-1] += f" ({min(lengths)} to {max(lengths)} a sequence)"
    mask, rewards = tokens.get("mask"), tokens.get("rewards")
    if isinstance(mask, torch.Tensor):
        parts.append(f"{int(mask.bool().sum())} by the model")
    if isinstance(rewards, torch.Tensor) and lengths:
        parts.append(f"mean reward {float(rewards.nansum()) / len(lengths):.4g}")
    if not is_missing(finish) and finish:
        parts.append(", ".join(f"{count} ended by {why}" for why, count in sorted(Counter(finish).items())))
    return parts


def rows(counts: Sequence[int], prompts: Sequence[Any] | None, completions: Sequence[Any] | None) -> Iterable[str]:
    """The first rows, each with its first sequence."""
    prompts, completions = [None if is_missing(texts) else texts for texts in (prompts, completions)]
    if prompts is None and completions is None:
        return
    for i, (count, end) in enumerate(zip(counts[:_ROWS], accumulate(counts), strict=False)):
        prompt = "" if prompts is None else _short(prompts[i])
        answer = "" if completions is None or not count else _short(completions[end - count])
        yield f"  {i}: {prompt} -> {answer}" + (f" (and {count - 1} more)" if count > 1 else "")
    if len(counts) > _ROWS:
        yield f"  ... and {_many(len(counts) - _ROWS, 'more row')}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
