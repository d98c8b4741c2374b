"""Prompts as token ids: texts, chats, ids, or mappings with one of these and further columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def split_columns(rows: Sequence[Any]) -> tuple[list[Any], dict[str, list[Any]]]:
    """The prompts themselves, and the further columns of rows that are mappings with a "prompt".

    Raises:
        ValueError: The rows have different columns, or a mapping has no "prompt".
    """
    first = rows[0] if len(rows) else None
    if not isinstance(first, Mapping):
        return list(rows), {}
    for row in rows:
        if not isinstance(row, Mapping) or row.keys() != first.keys() or "prompt" not in row:
            names = ", ".join(map(str, row)) if isinstance(row, Mapping) else type(row).__name__
            raise ValueError(
                f'rows are mappings with a "prompt" and the same further columns: one has '
                f"{', '.join(map(str, first))}, another {names}"
            )
    columns = {str(name): [row[name] for row in rows] for name in first if name != "prompt"}
    return [row["prompt"] for row in rows], columns


def to_ids(prompt: Any, tokenizer: PreTrainedTokenizerBase | None) -> list[int]:
    """The token ids of one prompt; a chat goes through the tokenizer's template.

    Raises:
        TypeError: It is no text, chat or ids.
        ValueError: It has no tokens, or needs a tokenizer where there is none.
    """
    if isinstance(prompt, torch.Tensor) or (isinstance(prompt, Sequence) and all(isinstance(i, int) for i in prompt)):
        ids = [int(i) for i in prompt]
    elif tokenizer is None:
        raise ValueError("texts and chats need a tokenizer; tokenizer= of the sampler would do, or token ids")
    elif isinstance(prompt, str):
        ids = tokenizer.encode(prompt)
    elif isinstance(prompt, Sequence) and all(isinstance(turn, Mapping) for turn in prompt):
        chat = [dict(turn) for turn in prompt]
        written: Any = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        ids = list(written)
    else:
        raise TypeError(f"a prompt is a text, a chat or token ids, got {type(prompt).__name__} {prompt!r:.60}")
    if not ids:
        raise ValueError(f"the prompt {prompt!r:.60} has no tokens: a model continues at least one")
    return ids
