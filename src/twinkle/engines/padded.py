"""Padded batches: right-padded columns of some sequences, as the model and its losses read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from twinkle.engines.rollouts import Rollouts

if TYPE_CHECKING:
    from collections.abc import Iterator

Columns: TypeAlias = Rollouts | Mapping[str, object]
"""Sequences as a caller gives them: rollouts, or a collator's mapping."""

Padded: TypeAlias = dict[str, Tensor]
"""Columns (sequences, tokens): input_ids, attention_mask, mask (tokens that count), and those of the batch; or of
a pack, (1, tokens), with position_ids and sequence_ids in place of attention_mask."""

IGNORED = -100
"""The label of a token that does not count, as in Transformers."""


def has_packs(batch: Columns) -> bool:
    """Whether a mapping's rows are packs: it has position_ids, and no attention_mask."""
    return isinstance(batch, Mapping) and "position_ids" in batch and "attention_mask" not in batch


def columns_of(batch: Mapping[str, object]) -> Padded:
    """The columns of a mapping as tensors of the host; a model moves what it computes to its own device.

    Raises:
        ValueError: For a mapping without input_ids.
    """
    if "input_ids" not in batch:
        raise ValueError(f"a batch has input_ids, but this mapping has {', '.join(map(str, batch)) or 'no column'}")
    return on_host({name: torch.as_tensor(column) for name, column in batch.items() if _is_column(column)})


def padded_parts(batch: Columns, size: int | None) -> Iterator[Padded]:
    """Parts of a batch, each padded on the right to its own longest sequence.

    Args:
        batch: Rollouts; or a mapping of columns (rows, tokens), padded on either side: input_ids, attention_mask
            (without one all tokens are the sequence's), labels (without them all tokens count).
        size: Largest number of rows of one; None for all rows at once.

    Raises:
        ValueError: For a mapping without input_ids, or with positions that are not those of its attention_mask.
    """
    if isinstance(batch, Rollouts):
        for start in range(0, len(batch), size or max(len(batch), 1)):
            part = batch[start : start + (size or len(batch))]
            if part.lengths:
                yield _to_the_right(on_host(part.pad()))
        return
    columns = columns_of(batch)
    rows = len(columns["input_ids"])
    for start in range(0, rows, size or max(rows, 1)):
        yield _to_the_right({name: column[start : start + (size or rows)] for name, column in columns.items()})


def on_host(columns: Mapping[str, Tensor]) -> Padded:
    """The columns in the host's memory: those of samplers may be on several devices."""
    return {name: column.cpu() for name, column in columns.items()}


def filler() -> Padded:
    """A micro-batch in which nothing counts, for a rank that has fewer than others."""
    ids = torch.zeros(1, 2, dtype=torch.long)
    return {"input_ids": ids, "targets": ids, "attention_mask": ids == 0, "mask": ids != 0}


def with_targets(columns: Padded, predicted: Tensor) -> Padded:
    """The columns with what the model is to predict as `targets`, and the tokens that count as `mask`.

    Args:
        columns: Rows with input_ids, and labels or a mask where not every token counts.
        predicted: Tokens that come after another one of their sequence.
    """
    ids = columns["input_ids"]
    rest = {name: column for name, column in columns.items() if name != "labels"}
    labels = columns.get("labels", ids)
    counted = predicted & (labels != IGNORED) & columns.get("mask", predicted).bool()
    return rest | {"targets": torch.where(counted, labels, ids), "mask": counted}


def _is_column(value: object) -> bool:
    return isinstance(value, Tensor | list | tuple) or hasattr(value, "__array__")


def _to_the_right(columns: Padded) -> Padded:
    ids = columns["input_ids"]
    attended = columns.get("attention_mask", torch.ones_like(ids)).bool()
    # A stable sort moves each sequence to the left, whichever side was padded.
    order = (~attended).to(torch.uint8).argsort(dim=1, stable=True)
    longest = max(int(attended.sum(dim=1).max()), 2) if attended.numel() else 0
    moved = {
        name: column.gather(1, order)[:, :longest] if column.shape == ids.shape else column
        for name, column in {**columns, "attention_mask": attended}.items()
    }
    attended = moved["attention_mask"]
    positions = moved.pop("position_ids", None)
    if positions is not None and bool((attended & (positions != torch.arange(positions.shape[1]))).any()):
        raise ValueError(
            "position_ids beside an attention_mask count each row's tokens from 0; leave out attention_mask for rows "
            "that are packs of several sequences"
        )
    moved["input_ids"] = torch.where(attended, moved["input_ids"], 0)
    predicted = attended.clone()
    predicted[:, :1] = False  # nothing comes before the first token
    return with_targets(moved, predicted)
