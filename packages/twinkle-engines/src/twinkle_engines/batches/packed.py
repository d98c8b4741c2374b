"""Packed batches: sequences one after the other in one row, without padding, as the model and its losses read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from twinkle_engines.batches.padded import columns_of, with_targets
from twinkle_engines.batches.padding import fit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from twinkle_engines.batches.padded import Padded


def packs(padded: Padded, max_tokens: int | None) -> Iterator[tuple[Padded, list[int]]]:
    """Packs of a right-padded batch, each with the numbers of its sequences.

    Args:
        padded: Columns (sequences, tokens), and further ones with an entry for each sequence.
        max_tokens: Tokens of a pack at most; None for one pack.

    Returns:
        Columns (1, tokens): `position_ids`, `sequence_ids` (number in the pack), and the others but the attention mask;
        further columns have an entry for each sequence of the pack.

    Raises:
        ValueError: A sequence is longer than that.
    """
    lengths = padded["attention_mask"].sum(dim=1).tolist()
    limit = sum(lengths) if max_tokens is None else max_tokens
    longest = max(lengths, default=0)
    if longest > limit:
        raise ValueError(f"a sequence has {longest} tokens, but max_tokens={limit}: use max_tokens={longest}")
    for sequences in fit(lengths, limit):
        yield _pack(padded, sequences, [lengths[i] for i in sequences]), sequences


def given_packs(batch: Mapping[str, object]) -> Iterator[Padded]:
    """The packs that are the rows of a mapping: input_ids, position_ids, and labels where not every token counts.

    Raises:
        ValueError: The positions of a sequence are not 0, 1, 2 and so on.
    """
    columns = columns_of(batch)
    ids, positions = columns["input_ids"], columns["position_ids"]
    before = torch.nn.functional.pad(positions[:, :-1], (1, 0), value=-1)
    wrong = ((positions != 0) & (positions != before + 1)).nonzero()
    if len(wrong):
        row, place = wrong[0].tolist()
        raise ValueError(
            "position_ids without an attention_mask mean packed sequences, each of positions 0, 1, 2 and so on, but "
            f"row {row} has {positions[row, place]} behind {before[row, place]} at {place}: use 0 at each first token"
        )
    columns["sequence_ids"] = (positions == 0).cumsum(dim=1) - 1
    made = with_targets(columns, positions > 0)
    for i in range(len(ids)):
        yield {name: column[i : i + 1] for name, column in made.items()}


def lengths_of(pack: Padded) -> list[int]:
    """Tokens of each sequence of a pack."""
    return torch.bincount(pack["sequence_ids"].flatten()).tolist()


def _pack(padded: Padded, sequences: Sequence[int], lengths: Sequence[int]) -> Padded:
    shape = padded["input_ids"].shape
    made: Padded = {}
    for name, column in padded.items():
        if name in ("attention_mask", "position_ids", "sequence_ids"):
            continue
        if column.shape == shape:
            made[name] = torch.cat([column[i, :n] for i, n in zip(sequences, lengths, strict=True)])[None]
        else:
            made[name] = column[list(sequences)] if len(column) == shape[0] else column
    numbers = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[None]
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    device = made["input_ids"].device
    return made | {"position_ids": positions.to(device), "sequence_ids": numbers.to(device)}
