"""Micro-batches: what a model computes at once, padded or packed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch

from twinkle_engines.batches.given import whole
from twinkle_engines.batches.packed import given_packs, lengths_of, packs
from twinkle_engines.batches.padded import (
    Columns,
    Padded,
    check_labelled,
    chosen_rows,
    columns_of,
    has_packs,
    padded_parts,
)
from twinkle_engines.batches.rollouts import Rollouts
from twinkle_engines.models.neighbours import Neighbours
from twinkle_remote.values import LeftOut

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from torch import Tensor

    Batch: TypeAlias = Columns | Sequence[Columns]


_ANY = Neighbours()


class MicroBatch(NamedTuple):
    """Columns of some sequences.

    Attributes:
        columns: The columns.
        sequences: The number that each sequence has in the batch; without any it is a filler.
        apart: Whether it is a part of rows that belong together, but cannot be computed at once.
        left: The marks of columns that the call does not read.
    """

    columns: Padded
    sequences: Sequence[int] = ()
    apart: bool = False
    left: Mapping[str, LeftOut] = MappingProxyType({})

    @property
    def is_pack(self) -> bool:
        """Whether its sequences stand one after the other, without padding."""
        return "attention_mask" not in self.columns

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        if "attention_mask" in self.columns:
            return int(self.columns["attention_mask"].sum(dim=1).max())
        return int(self.columns["position_ids"].max()) + 1

    def has(self, name: str) -> bool:
        """Whether the batch has a column, also where it is not read."""
        return name in self.columns or name in self.left

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


def micro_batches(
    batch: Batch, size: int | None, max_tokens: int | None, neighbours: Neighbours = _ANY
) -> Iterator[MicroBatch]:
    """Cut a batch into micro-batches.

    Args:
        batch: Columns, as `padded_parts` and `given_packs` take them; or a list of such, each of which is packed and
            computed at once.
        size: Rows of a padded micro-batch at most; None for all.
        max_tokens: Tokens of a pack at most; None packs lists alone.
        neighbours: Which sequences may be computed at once.

    Raises:
        ValueError: A batch cannot be read, or a pack holds sequences that may not be computed at once.
    """
    is_list = not isinstance(batch, Rollouts | Mapping)
    before = 0
    for part in _parts(batch):
        if has_packs(part) and isinstance(part, Mapping):
            for pack in given_packs(part):
                lengths = lengths_of(pack)
                count = len(lengths)
                if len(neighbours.groups(lengths)) > 1:
                    raise ValueError(
                        f"a pack has sequences of up to {neighbours.border} tokens and of more, which change each "
                        "other in this model: use packs of either, or max_tokens, which packs them apart"
                    )
                yield MicroBatch(pack, range(before, before + count))
                before += count
            continue
        is_pack = is_list or max_tokens is not None
        for padded in padded_parts(part, None if is_pack else size):
            groups = neighbours.groups(padded["attention_mask"].sum(dim=1).tolist())
            for group in groups:
                rows = chosen_rows(padded, group) if len(groups) > 1 else padded
                for columns, members in packs(rows, max_tokens) if is_pack else [(rows, range(len(group)))]:
                    yield MicroBatch(columns, [before + group[i] for i in members], len(groups) > 1)
            before += len(padded["input_ids"])


def given_sizes(micro_batch_size: object, max_tokens: object) -> tuple[int | None, int | None]:
    """Rows and tokens of a pass at most, as they are given: one of them, or none.

    Raises:
        TypeError: One is no whole number.
        ValueError: One is below 1, or both are given.
    """
    rows = None if micro_batch_size is None else whole("micro_batch_size", micro_batch_size, 1)
    tokens = None if max_tokens is None else whole("max_tokens", max_tokens, 1)
    if rows is not None and tokens is not None:
        raise ValueError("micro_batch_size counts rows, and max_tokens tokens: give one of them")
    return rows, tokens


def is_packed(batch: Batch, max_tokens: int | None) -> bool:
    """Whether a batch, or another rank's part of it, is computed in packs."""
    return max_tokens is not None or not isinstance(batch, Rollouts | Mapping) or has_packs(batch)


def check_trainable(batch: Batch, pairs: bool) -> None:
    """Raise for a batch that cannot be trained on.

    Args:
        batch: The batch.
        pairs: Whether the loss is one of pairs.

    Raises:
        ValueError: A mapping says nothing of what counts, or rows of rollouts are not pairs.
    """
    for part in _parts(batch):
        check_labelled(part)
        wrong = [n for n in part.counts if n not in (0, 2)] if pairs and isinstance(part, Rollouts) else []
        if wrong and isinstance(part, Rollouts):
            raise ValueError(
                f"row {part.counts.index(wrong[0])} has {wrong[0]} sequences: a loss of pairs needs rows of two, the "
                "chosen one first; use counts=[2] * pairs"
            )


def check_inputs(batch: Batch, unread: AbstractSet[str]) -> None:
    """Raise for a batch with what a model reads and engines do not give it, such as images; zeros change nothing.

    Args:
        batch: The batch.
        unread: Names of such inputs of the model.

    Raises:
        ValueError: It has one of them.
    """
    for part in _parts(batch):
        for name, value in part.items() if isinstance(part, Mapping) else ():
            if name not in unread or value is None:
                continue
            if isinstance(value, LeftOut) or not hasattr(value, "__array__") or bool(torch.as_tensor(value).any()):
                raise ValueError(
                    f"the batch has {name}, which this model would read, but an engine trains on tokens alone: use a "
                    "collator that leaves it out"
                )


def count_sequences(batch: Batch) -> list[int]:
    """Number of sequences of each row of a batch, of which a list has one for each of its members."""
    counts = [_counts(part) for part in _parts(batch)]
    return counts[0] if isinstance(batch, Rollouts | Mapping) else [sum(count) for count in counts]


def _counts(part: Columns) -> list[int]:
    if isinstance(part, Rollouts):
        return part.counts
    columns = columns_of(part)
    if not has_packs(part):
        return [1] * len(columns["input_ids"])
    counts: list[int] = (columns["position_ids"] == 0).sum(dim=1).tolist()
    return counts


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
