"""Padding and packing: flat columns by token as rectangles, or as sequences one after the other.

A padded column has the shape [sequences, longest sequence]. A pack has the shape [1, tokens]: sequences one after the
other, whose first tokens have the position 0, which is how Transformers tells them apart.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from twinkle_engines.batches.columns import cut, entries

if TYPE_CHECKING:
    from collections.abc import Sequence

Padded: TypeAlias = dict[str, Any]
"""A padded batch or a pack, as a model and its losses read it: tensors; what is no numbers is a list by sequence."""
Side = Literal["left", "right"]

TEMPERATURES = "temperatures"
"""The temperature of its sequence at each token; 1 at padding."""
TRUNCATED = "truncated_sampling"
"""Whether each token's sequence was drawn from a part of the vocabulary."""


class Flat(NamedTuple):
    """Columns of some sequences.

    Attributes:
        tokens: Each column by token, of all sequences one after the other: input_ids and others.
        lengths: Tokens of each sequence.
        rows: Columns with an entry for each sequence.
        packs: The numbers of the sequences of each pack, where the rows that were given are packs.
    """

    tokens: dict[str, Any]
    lengths: list[int]
    rows: dict[str, Any]
    packs: list[list[int]] | None = None

    def padded(self, sequences: Sequence[int], side: Side = "right", pad_id: int = 0, width: int = 0) -> Padded:
        """Some sequences as rectangles, 0 where there is no token (a temperature: 1).

        Args:
            sequences: Their numbers.
            side: Where the padding is.
            pad_id: Stands in `input_ids` where there is no token.
            width: Tokens of a row at least.

        Returns:
            `input_ids`, `attention_mask`, and the other columns by name.
        """
        lengths = torch.tensor([self.lengths[i] for i in sequences], dtype=torch.int64)
        width = max([width, *lengths.tolist()])
        places = torch.arange(width)[None]
        there = places < lengths[:, None] if side == "right" else places >= width - lengths[:, None]
        chosen = self._places(sequences)

        def rectangle(values: Any, filler: int) -> Any:
            if not isinstance(values, Tensor):
                return self._by_sequence(values, sequences)
            whole = values.new_full((len(sequences), width, *values.shape[1:]), filler)
            whole[there.to(values.device)] = values[chosen.to(values.device)]
            return whole

        fillers = {"input_ids": pad_id, TEMPERATURES: 1}
        made = {name: rectangle(_numbers(values), fillers.get(name, 0)) for name, values in self.tokens.items()}
        return {**made, "attention_mask": there.long().to(made["input_ids"].device), **self._rows(sequences)}

    def packed(self, sequences: Sequence[int]) -> Padded:
        """Some sequences as a pack: `input_ids`, `position_ids`, `sequence_ids` (number in the batch), the others."""
        chosen, device = self._places(sequences), self.tokens["input_ids"].device
        made = {
            name: own[chosen.to(own.device)][None] if isinstance(own, Tensor) else self._by_sequence(own, sequences)
            for name, own in ((name, _numbers(values)) for name, values in self.tokens.items())
        }
        positions = torch.cat([torch.arange(self.lengths[i]) for i in sequences])
        numbers = torch.cat([torch.full((self.lengths[i],), i) for i in sequences])
        layout = {"position_ids": positions[None].to(device), "sequence_ids": numbers[None].to(device)}
        return {**made, **layout, **self._rows(sequences)}

    def _places(self, sequences: Sequence[int]) -> Tensor:
        """The places of the tokens of some sequences in the flat columns."""
        starts = torch.tensor([0, *self.lengths]).cumsum(0).tolist()
        parts = [torch.arange(starts[i], starts[i + 1]) for i in sequences]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)

    def _by_sequence(self, values: Any, sequences: Sequence[int]) -> list[Any]:
        ends = [0, *accumulate(self.lengths)]
        return [cut(values, ends[i], ends[i + 1]) for i in sequences]

    def _rows(self, sequences: Sequence[int]) -> Padded:
        return {name: entries(values, sequences) for name, values in self.rows.items()}


def _numbers(values: Any) -> Any:
    """An array of numbers as a tensor; all else as it is."""
    is_array = isinstance(values, np.ndarray) and values.dtype.kind in "biuf"
    return torch.as_tensor(values) if is_array else values


def fit(lengths: Sequence[int], length: int) -> list[list[int]]:
    """The sequences of each pack, by first fit decreasing (Johnson 1973): at most 11/9 of the fewest packs, and 1.

    Args:
        lengths: Tokens of each sequence; empty ones need no pack.
        length: Tokens of a pack at most.

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
