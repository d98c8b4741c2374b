"""Padded batches: right-padded columns of some sequences, as the model and its losses read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from twinkle_engines.batches.columns import as_column
from twinkle_engines.batches.padding import TEMPERATURES
from twinkle_engines.batches.rollouts import Rollouts
from twinkle_engines.batches.whole_columns import OF_THE_WHOLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Columns: TypeAlias = Rollouts | Mapping[str, object]
"""Sequences as a caller gives them: rollouts, or a collator's mapping."""

Padded: TypeAlias = dict[str, Tensor]
"""Columns (sequences, tokens): input_ids, attention_mask, mask (tokens that count), and those of the batch; or of
a pack, (1, tokens), with position_ids and sequence_ids in place of attention_mask."""

IGNORED = -100
"""The label of a token that does not count, as in Transformers."""


def has_packs(batch: Columns) -> bool:
    """Whether a mapping's rows are packs: it has position_ids, and no attention_mask."""
    return isinstance(batch, Mapping) and batch.get("position_ids") is not None and batch.get("attention_mask") is None


def columns_of(batch: Mapping[str, object]) -> Padded:
    """The columns of a mapping as tensors of the host; a model moves what it computes to its own device.

    Whole numbers of any size become int64. What is no column of numbers, such as a list of texts, is left out; a column
    that is None is none.

    Raises:
        ValueError: For a mapping without input_ids, or a column that models read and that is no rectangle of numbers,
            has another shape than input_ids, or is a mask of other numbers than 0 and 1.
    """
    given = _given(batch)
    if "input_ids" not in given:
        raise ValueError(
            f"a batch has input_ids, but this mapping has {', '.join(map(str, given)) or 'no column'}; use a collator "
            "that gives input_ids"
        )
    found = {name: as_column(name, column, name in _READ) for name, column in given.items() if _is_column(column)}
    if unread := [name for name in (*_READ, TEMPERATURES) if name in given and found.get(name) is None]:
        value = given[unread[0]]
        raise ValueError(
            f"the column {unread[0]} is {value!r:.60} of type {type(value).__name__}: use a tensor, an array or a list "
            "of numbers by row, or leave it out"
        )
    columns = on_host({name: column for name, column in found.items() if column is not None})
    shape = columns["input_ids"].shape
    for name in (name for name in _READ if name in columns):
        _check_read(name, columns[name], shape)
    return columns


def _given(batch: Mapping[str, object]) -> dict[str, object]:
    """The columns that a mapping has: those that are None are none."""
    return {name: column for name, column in batch.items() if name not in OF_THE_WHOLE and column is not None}


def _check_read(name: str, column: Tensor, shape: torch.Size) -> None:
    """Raise for a column that a model would read in another way than it was meant.

    Raises:
        ValueError: It has another shape than the ids, is a mask of other numbers than 0 and 1, or ids that are flags.
    """
    if column.shape != shape:
        raise ValueError(
            f"the column {name} has the shape {tuple(column.shape)}, but input_ids {tuple(shape)}: use one value for "
            "each token"
        )
    if not name.endswith("mask"):
        if column.dtype == torch.bool:
            raise ValueError(f"the column {name} is of {column.dtype}: use whole numbers (rows, tokens)")
        return
    strange = column[(column != 0) & (column != 1)] if column.dtype != torch.bool else column[:0]
    if strange.numel():
        hint = "a function as the loss for weights of tokens"
        if name == "attention_mask":
            hint = "0 at padding, and position_ids that begin with 0 at each sequence for the sequences of a pack"
        raise ValueError(f"{name} has {strange[0].item():g}, but it is a mask, of 0 and 1: use {hint}")


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


_READ = ("input_ids", "attention_mask", "labels", "position_ids", "mask")
"""Columns of a collator that models read."""


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
    if TEMPERATURES in rest:
        rest[TEMPERATURES] = _temperatures(rest[TEMPERATURES], ids, predicted)
    return rest | {"targets": torch.where(counted, labels, ids), "mask": counted}


def check_labelled(batch: Columns) -> None:
    """Raise for a mapping that does not say which of its tokens count.

    Raises:
        ValueError: It has further columns than input_ids, but neither labels nor a mask.
    """
    if isinstance(batch, Mapping) and len(given := _given(batch)) > 1 and not {"labels", "mask"} & given.keys():
        raise ValueError(
            f"a batch to train on has labels ({IGNORED} where a token does not count) or a mask, but this mapping has "
            f"{', '.join(map(str, given))}; labels=input_ids, {IGNORED} at padding, counts every token"
        )


def chosen_rows(padded: Padded, rows: Sequence[int]) -> Padded:
    """Some rows of a right-padded batch, as wide as the longest of them, and 2 tokens or more."""
    shape = padded["input_ids"].shape
    longest = max(int(padded["attention_mask"][list(rows)].sum(dim=1).max()), 2)
    return {
        name: column[list(rows), :longest]
        if column.shape == shape
        else column[list(rows)]
        if column.dim() and len(column) == shape[0]
        else column
        for name, column in padded.items()
    }


def _temperatures(given: Tensor, ids: Tensor, read: Tensor) -> Tensor:
    """Temperatures at each token, those of whole rows too; 1 where none is read.

    Raises:
        ValueError: They have another shape, or one is not above 0.
    """
    spread = given[:, None].expand(ids.shape) if given.dim() == 1 and len(given) == len(ids) else given
    if spread.shape != ids.shape:
        raise ValueError(
            f"temperatures are one a sequence or one a token, of the shape {tuple(ids.shape)}, but got the shape "
            f"{tuple(given.shape)}"
        )
    spread = torch.where(read, spread.double(), 1.0)
    wrong = ~(spread.isfinite() & (spread > 0))
    if bool(wrong.any()):
        raise ValueError(f"temperatures has {spread[wrong][0].item()}: a temperature is above 0; of greedy sequences 1")
    return spread


def _is_column(value: object) -> bool:
    return isinstance(value, Tensor | list | tuple) or hasattr(value, "__array__")


def _two_wide(columns: Padded) -> Padded:
    """The columns with padding, where there is none or one token: a row of empty sequences is a row too."""
    ids = columns["input_ids"]
    if ids.dim() != 2 or ids.shape[1] >= 2 or not len(ids):
        return columns
    missing = 2 - ids.shape[1]
    columns = {"attention_mask": torch.ones_like(ids), **columns}
    return {
        name: torch.nn.functional.pad(column, (0, missing)) if column.shape == ids.shape else column
        for name, column in columns.items()
    }


def _to_the_right(columns: Padded) -> Padded:
    columns = _two_wide(columns)
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
            "position_ids with an attention_mask count each row's tokens from 0; leave out attention_mask for rows "
            "that are packs of several sequences"
        )
    moved["input_ids"] = torch.where(attended, moved["input_ids"], 0)
    predicted = attended.clone()
    predicted[:, :1] = False  # nothing comes before the first token
    return with_targets(moved, predicted)
