"""Padding and packing: flat columns by token as rectangles, or as sequences one after the other.

A padded column has the shape [sequences, longest sequence]. A pack has the shape [1, tokens]: sequences one after the
other, whose first tokens have the position 0, which is how Transformers tells them apart.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from twinkle_engines.batches.columns import KNOWN, cut, entries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_engines.batches.rollouts import Rollouts

Padded: TypeAlias = dict[str, Any]
"""A padded batch or a pack, as a model and its losses read it: tensors; what is no numbers is a list by sequence."""
Side = Literal["left", "right"]

TEMPERATURES = "temperatures"
"""The temperature of its sequence at each token; 1 at padding."""
TRUNCATED = "truncated_sampling"
"""Whether each token's sequence was drawn from a part of the vocabulary."""


def padded(
    rollouts: Rollouts, sequences: Sequence[int], side: Side = "right", pad_id: int = 0, width: int = 0
) -> Padded:
    """Some sequences as rectangles, 0 where there is no token (a temperature: 1).

    Returns:
        `input_ids`, `attention_mask`, and the other columns by name.
    """
    lengths = torch.tensor([rollouts.lengths[i] for i in sequences], dtype=torch.int64)
    width = max([width, *lengths.tolist()])
    places = torch.arange(width)[None]
    there = places < lengths[:, None] if side == "right" else places >= width - lengths[:, None]
    fillers = {"input_ids": pad_id, TEMPERATURES: 1}
    made: Padded = {}
    for name, values in _by_token(rollouts, sequences).items():
        made[name] = values
        if isinstance(values, Tensor):
            made[name] = values.new_full((len(sequences), width, *values.shape[1:]), fillers.get(name, 0))
            made[name][there.to(values.device)] = values
    return {**made, "attention_mask": there.long().to(made["input_ids"].device), **_by_sequence(rollouts, sequences)}


def packed(rollouts: Rollouts, sequences: Sequence[int]) -> Padded:
    """Some sequences as a pack: `input_ids`, `position_ids`, `sequence_ids` (number in the batch), the others."""
    made = {name: one[None] if isinstance(one, Tensor) else one for name, one in _by_token(rollouts, sequences).items()}
    device = made["input_ids"].device
    positions = torch.cat([torch.arange(rollouts.lengths[i]) for i in sequences])
    numbers = torch.cat([torch.full((rollouts.lengths[i],), i) for i in sequences])
    layout = {"position_ids": positions[None].to(device), "sequence_ids": numbers[None].to(device)}
    return {**made, **layout, **_by_sequence(rollouts, sequences)}


def _by_token(rollouts: Rollouts, sequences: Sequence[int]) -> Padded:
    """The columns by token of some sequences, by the names of models: a tensor of all tokens, else a list by sequence.

    What is one a sequence for a model, its temperature, stands at each token.
    """
    starts = rollouts.starts[1]
    places = torch.cat([torch.arange(starts[i], starts[i + 1]) for i in sequences] or [torch.empty(0).long()])
    made: Padded = {}
    for name, given in rollouts.tokens.items():
        is_array = isinstance(given, np.ndarray) and given.dtype.kind in "biuf"
        values = torch.as_tensor(given) if is_array else given
        is_tensor = isinstance(values, Tensor)
        made["input_ids" if name == "ids" else name] = (
            values[places.to(values.device)]
            if is_tensor
            else [cut(values, starts[i], starts[i + 1]) for i in sequences]
        )
    for name, dtype in ((TEMPERATURES, torch.float64), (TRUNCATED, torch.bool)):
        if name in rollouts.sequences:
            each = torch.tensor([rollouts.sequences[name][i] for i in sequences], dtype=dtype)
            lengths = torch.tensor([rollouts.lengths[i] for i in sequences], dtype=torch.int64)
            made[name] = each.repeat_interleave(lengths).to(made["input_ids"].device)
    return made


def _by_sequence(rollouts: Rollouts, sequences: Sequence[int]) -> Padded:
    """The further columns by sequence and by row, with an entry for each sequence."""
    rows = [bisect_right(rollouts.starts[0], i) - 1 for i in sequences]
    made = {name: entries(one, sequences) for name, one in rollouts.sequences.items() if name not in KNOWN}
    return {**made, **{name: entries(one, rows) for name, one in rollouts.columns.items()}}


def fit(lengths: Sequence[int], length: int) -> list[list[int]]:
    """The sequences of each pack, by first fit decreasing (Johnson 1973): at most 11/9 of the fewest packs, and 1.

    Raises:
        ValueError: A sequence is longer than that.
    """
    if max(lengths, default=0) > length:
        raise ValueError(
            f"a sequence has {max(lengths)} tokens, but max_tokens={length}: use max_tokens={max(lengths)}"
        )
    packs: list[list[int]] = []
    leaves = 1 << max(len(lengths) - 1, 0).bit_length()
    room = [length] * (2 * leaves)  # a tree: a node has the most room of those below, and pack k is leaf leaves + k
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not lengths[i]:
            break
        node = 1
        while node < leaves:
            node = 2 * node + (room[2 * node] < lengths[i])
        if node - leaves == len(packs):
            packs.append([])
        packs[node - leaves].append(i)
        room[node] -= lengths[i]
        while node := node // 2:
            room[node] = max(room[2 * node], room[2 * node + 1])
    return [sorted(pack) for pack in packs]
