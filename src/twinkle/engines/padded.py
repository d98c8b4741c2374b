"""Padded batches: right-padded columns of some sequences, as the model and its losses read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from twinkle.engines.rollouts import Rollouts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Padded: TypeAlias = dict[str, Tensor]
"""Columns (sequences, tokens): input_ids, attention_mask, mask (tokens that count), and those of the batch."""

IGNORED = -100
"""The label of a token that does not count, as in Transformers."""


def rows_of(batch: Mapping[str, object]) -> int:
    """Number of rows of a collator's mapping.

    Raises:
        ValueError: For a mapping without input_ids.
    """
    if "input_ids" not in batch:
        raise ValueError(f"a batch has input_ids, but this mapping has {', '.join(map(str, batch)) or 'no column'}")
    return len(torch.as_tensor(batch["input_ids"]))


def micro_batches(batch: Rollouts | Mapping[str, object], size: int | None) -> Iterator[Padded]:
    """Cut a batch into micro-batches, each padded on the right to its own longest sequence.

    Args:
        batch: Rollouts; or a collator's mapping of columns (rows, tokens), padded on either side: input_ids,
            attention_mask (without one all tokens are the sequence's), labels (without them all tokens count).
        size: Largest number of rows of one; None for all rows at once.
    """
    if isinstance(batch, Rollouts):
        for start in range(0, len(batch), size or max(len(batch), 1)):
            part = batch[start : start + (size or len(batch))]
            if part.lengths:
                yield _to_the_right(part.pad())
        return
    columns = {name: torch.as_tensor(column) for name, column in batch.items() if _is_column(column)}
    rows = rows_of(batch)
    for start in range(0, rows, size or max(rows, 1)):
        yield _to_the_right({name: column[start : start + (size or rows)] for name, column in columns.items()})


def filler() -> Padded:
    """A micro-batch in which nothing counts, for a rank that has fewer than others."""
    ids = torch.zeros(1, 2, dtype=torch.long)
    return {"input_ids": ids, "targets": ids, "attention_mask": ids == 0, "mask": ids != 0}


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
    labels = moved.pop("labels", moved["input_ids"])
    counted = attended & (labels != IGNORED) & moved.get("mask", attended).bool()
    counted[:, :1] = False  # nothing comes before the first token
    ids = torch.where(attended, moved["input_ids"], 0)
    return moved | {"input_ids": ids, "targets": torch.where(counted, labels, ids), "mask": counted}
