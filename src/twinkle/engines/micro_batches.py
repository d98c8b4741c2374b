"""Micro-batches: what a model computes at once, padded or packed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch

from twinkle.engines.packed import given_packs, lengths_of, packs
from twinkle.engines.padded import Columns, Padded, columns_of, has_packs, padded_parts
from twinkle.engines.rollouts import Rollouts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    Batch: TypeAlias = Columns | Sequence[Columns]


class MicroBatch(NamedTuple):
    """Columns, and the number that each of their sequences has in the batch; without any it is a filler."""

    columns: Padded
    sequences: Sequence[int] = ()

    def on(self, device: torch.device) -> MicroBatch:
        """The same on a device."""
        return self._replace(columns={name: column.to(device) for name, column in self.columns.items()})

    def rows(self, values: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Values of the shape of `input_ids` by sequence: its number in the batch, and its values, 0 at the first."""
        if "attention_mask" in self.columns:
            lengths = self.columns["attention_mask"].sum(dim=1).tolist()
            found = [row[:length].clone() for row, length in zip(values, lengths, strict=True)]
        else:
            starts = self.columns["position_ids"].cpu() == 0
            apart = torch.split(values.masked_fill(starts, 0.0)[0], lengths_of(self.columns))
            found = [row.clone() for row in apart]
        return zip(self.sequences, found, strict=False)  # a filler's have no number


def micro_batches(batch: Batch, size: int | None, max_tokens: int | None) -> Iterator[MicroBatch]:
    """Cut a batch into micro-batches.

    Args:
        batch: Columns, as `padded_parts` and `given_packs` take them; or a list of such, each of which is packed and
            computed at once.
        size: Rows of a padded micro-batch at most; None for all.
        max_tokens: Tokens of a pack at most; None packs lists alone.
    """
    is_list = not isinstance(batch, Rollouts | Mapping)
    before = 0
    for part in _parts(batch):
        if has_packs(part) and isinstance(part, Mapping):
            for pack in given_packs(part):
                count = len(lengths_of(pack))
                yield MicroBatch(pack, range(before, before + count))
                before += count
            continue
        is_pack = is_list or max_tokens is not None
        for padded in padded_parts(part, None if is_pack else size):
            count = len(padded["input_ids"])
            for columns, sequences in packs(padded, max_tokens) if is_pack else [(padded, range(count))]:
                yield MicroBatch(columns, [before + i for i in sequences])
            before += count


def is_packed(batch: Batch, max_tokens: int | None) -> bool:
    """Whether a batch, or another rank's part of it, is computed in packs."""
    return max_tokens is not None or not isinstance(batch, Rollouts | Mapping) or has_packs(batch)


def count_sequences(batch: Batch) -> int:
    """Number of sequences of a batch."""
    return sum(map(_count, _parts(batch)))


def _count(part: Columns) -> int:
    if isinstance(part, Rollouts):
        return len(part.lengths)
    columns = columns_of(part)
    return int((columns["position_ids"] == 0).sum()) if has_packs(part) else len(columns["input_ids"])


def _parts(batch: Batch) -> Sequence[Columns]:
    """The members of a list; what is no list is the one part.

    Raises:
        TypeError: It is no batch.
    """
    if isinstance(batch, Rollouts | Mapping):
        return [batch]
    if isinstance(batch, list | tuple) and all(isinstance(part, Rollouts | Mapping) for part in batch):
        return batch
    raise TypeError(
        f"a batch is Rollouts, a mapping with input_ids, or a list of such packs, got {type(batch).__name__}"
    )
