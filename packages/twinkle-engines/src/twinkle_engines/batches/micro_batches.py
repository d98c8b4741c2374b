"""Micro-batches: any form of batch becomes rollouts, which are cut, and padded or packed, into what is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from twinkle_engines.batches.columns import TEMPERATURES, Padded, fit, packed, padded
from twinkle_engines.batches.rollouts import Rollouts

if TYPE_CHECKING:
    from collections.abc import Iterator

Columns: TypeAlias = Rollouts | Mapping[str, object]
"""Sequences as a caller gives them: rollouts, or a collator's mapping."""
Batch: TypeAlias = Columns | Sequence[Columns]
"""Columns; or a list of them, each of which is a pack."""
Packs: TypeAlias = list[list[int]] | None
"""The numbers of the sequences of each pack, where the rows that were given are packs."""

IGNORED = -100
"""The label of a token that does not count, as in Transformers."""


def read(batch: Columns) -> tuple[Rollouts, Packs]:
    """The sequences of a batch without padding, in the host's memory; columns by token keep the names of models.

    Args:
        batch: Rollouts; or a mapping of columns (rows, tokens), padded on either side: input_ids, and attention_mask
            where not all tokens are there. With position_ids in place of it the rows are packs.

    Raises:
        ValueError: For a mapping without input_ids, a mask of other numbers than 0 and 1, or positions that are not
            those of packs.
    """
    if isinstance(batch, Rollouts):
        own = {name: one.cpu() if isinstance(one, Tensor) else one for name, one in batch.tokens.items()}
        return Rollouts.built(own, batch.sequences, batch.rows, batch.lengths, batch.counts), None
    columns = {name: column for name, one in batch.items() if (column := _column(name, one)) is not None}
    if "input_ids" not in columns:
        raise ValueError(
            f"a batch has input_ids, but this mapping has {', '.join(map(str, batch)) or 'no column'}; use a collator "
            "that gives input_ids"
        )
    ids, positions = columns.pop("input_ids"), columns.pop("position_ids", None)
    there = _read_mask(columns.pop("attention_mask", None), ids)
    lengths, packs = there.sum(1).tolist(), None
    if positions is not None and "attention_mask" not in batch:
        lengths, packs = _read_packs(positions)
    heat = columns.get(TEMPERATURES)
    if heat is not None and heat.dim() == 1 and len(heat) == len(ids):
        columns[TEMPERATURES] = heat[:, None].expand(ids.shape)
    tokens = {name: column[there] for name, column in columns.items() if column.shape[:2] == ids.shape}
    rest = {name: column for name, column in columns.items() if name not in tokens}
    if wrong := [name for name in ("labels", "mask", TEMPERATURES) if name in rest]:
        raise ValueError(
            f"the column {wrong[0]} has the shape {tuple(rest[wrong[0]].shape)}, but input_ids {tuple(ids.shape)}: use "
            "one value for each token"
        )
    sequences = {} if packs else {name: column for name, column in rest.items() if len(column) == len(ids)}
    return Rollouts.built({"ids": ids[there], **tokens}, sequences, {}, lengths, [1] * len(lengths)), packs


def _column(name: str, value: Any) -> Tensor | None:
    """A column of a mapping as a tensor, whole numbers as int64; None for one that is no numbers by row."""
    if value is None:
        return None
    rows = value.tolist() if getattr(getattr(value, "dtype", None), "kind", "") == "O" else value
    try:
        if isinstance(rows, list | tuple) and any(hasattr(row, "dtype") for row in rows):
            rows = torch.stack([torch.as_tensor(row) for row in rows])
        made = torch.as_tensor(rows).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        if name not in ("input_ids", "labels", "mask", "attention_mask", "position_ids"):
            return None
        raise ValueError(
            f"the column {name} is no rectangle of numbers, {error}: pad its rows to one length"
        ) from error
    is_whole = not made.is_floating_point() and made.dtype != torch.bool
    return None if not made.dim() else made.long() if is_whole else made


def _read_mask(mask: Tensor | None, ids: Tensor) -> Tensor:
    """Where tokens are."""
    if mask is None:
        return torch.ones_like(ids, dtype=torch.bool)
    if mask.shape != ids.shape or not bool(((mask == 0) | (mask == 1)).all()):
        raise ValueError(
            f"attention_mask has the shape {tuple(mask.shape)} and values up to {mask.max().item():g}: it has the "
            f"shape of input_ids, {tuple(ids.shape)}, 1 at tokens and 0 at padding; use position_ids that begin with "
            "0 at each sequence for the sequences of a pack"
        )
    return mask.bool()


def _read_packs(positions: Tensor) -> tuple[list[int], Packs]:
    """The lengths of sequences, and the numbers of those of each pack."""
    before = pad(positions[:, :-1], (1, 0), value=-1)
    if bool(((positions != 0) & (positions != before + 1)).any()):
        raise ValueError(
            "position_ids without an attention_mask mean packed sequences, each of positions 0, 1, 2 and so on; use 0 "
            "at each first token"
        )
    numbers = (positions.flatten() == 0).cumsum(0) - 1
    counts = [0, *(positions == 0).sum(1).cumsum(0).tolist()]
    return torch.bincount(numbers).tolist(), [list(range(first, last)) for first, last in pairwise(counts)]


def trainable(rollouts: Rollouts) -> Rollouts:
    """The rollouts with what the model is to predict as `targets`, and the tokens that count as `mask`.

    Raises:
        ValueError: A temperature is not above 0.
    """
    tokens = dict(rollouts.tokens)
    ids = tokens["ids"]
    lengths = torch.tensor(rollouts.lengths, dtype=torch.int64)
    predicted = torch.ones_like(ids, dtype=torch.bool)
    predicted[(lengths.cumsum(0) - lengths)[lengths > 0]] = False  # nothing comes before a first token
    labels = tokens.pop("labels", ids)
    counted = predicted & (labels != IGNORED) & tokens.get("mask", predicted).bool()
    if TEMPERATURES in tokens:  # of a mapping
        heat = torch.where(predicted, tokens[TEMPERATURES].double(), 1.0)
        if not bool(((heat > 0) & heat.isfinite()).all()):
            raise ValueError("temperatures has a value that is not above 0; of greedy sequences it is 1")
        tokens[TEMPERATURES] = heat
    tokens |= {"targets": torch.where(counted, labels, ids), "mask": counted}
    return Rollouts.built(tokens, rollouts.sequences, rollouts.rows, rollouts.lengths, rollouts.counts)


class MicroBatch(NamedTuple):
    """A part of a batch that a model computes at once.

    Attributes:
        columns: The columns, with `targets` and `mask`.
        sequences: The number that each sequence has in the batch; without any it is a filler.
        lengths: Tokens of each sequence.
    """

    columns: Padded
    sequences: Sequence[int] = ()
    lengths: Sequence[int] = ()

    def on(self, device: torch.device) -> MicroBatch:
        """The same on a device."""
        moved = {name: one.to(device) if isinstance(one, Tensor) else one for name, one in self.columns.items()}
        return self._replace(columns=moved)

    def rows(self, values: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Values of the shape of `input_ids` by sequence: its number in the batch, and its values, 0 at the first."""
        if "attention_mask" in self.columns:
            found: Any = [row[:length] for row, length in zip(values, self.lengths, strict=False)]
        else:
            found = torch.split(values[0], list(self.lengths))
        for number, row in zip(self.sequences, found, strict=True):
            yield number, torch.cat([torch.zeros_like(row[:1]), row[1:]])


def micro_batches(
    batch: Batch, size: int | None, max_tokens: int | None, *, in_pairs: bool = False
) -> Iterator[MicroBatch]:
    """Cut a batch into micro-batches.

    Args:
        batch: Columns, as `read` takes them; or a list of such, each of which is packed and computed at once.
        size: Sequences of a padded micro-batch at most; None for all.
        max_tokens: Tokens of a pack at most; None packs lists alone.
        in_pairs: Whether rows of two sequences stay whole.

    Raises:
        ValueError: A batch cannot be read, or a sequence is longer than a pack.
    """
    before = 0
    for part in parts_of(batch):
        given, packs = read(part)
        rollouts, lengths = trainable(given), given.lengths
        is_list = not isinstance(batch, Rollouts | Mapping)
        if packs is not None or is_list or max_tokens is not None:
            packs = packs or fit(lengths, sum(lengths) if max_tokens is None else max_tokens)
            made = [(packed(rollouts, pack), pack) for pack in packs]
        else:
            step = size or max(len(lengths), 1)
            if in_pairs and isinstance(part, Rollouts) and {*part.counts} <= {0, 2}:
                step = max(2, step - step % 2)
            cuts = [list(range(i, min(i + step, len(lengths)))) for i in range(0, len(lengths), step)]
            made = [(padded(rollouts, cut, width=2), cut) for cut in cuts]
        for one, members in made:
            yield MicroBatch(one, [before + i for i in members], [lengths[i] for i in members])
        before += len(lengths)


def filler() -> MicroBatch:
    """A micro-batch in which nothing counts, for a rank that has fewer than others."""
    ids = torch.zeros(1, 2, dtype=torch.long)
    return MicroBatch({"input_ids": ids, "targets": ids, "attention_mask": ids, "mask": ids != 0})


def is_packed(batch: Batch, max_tokens: int | None) -> bool:
    """Whether a batch, or another rank's part of it, is computed in packs."""
    if max_tokens is not None or not isinstance(batch, Rollouts | Mapping):
        return True
    return isinstance(batch, Mapping) and batch.get("position_ids") is not None and batch.get("attention_mask") is None


def parts_of(batch: Batch) -> Sequence[Columns]:
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


def check_trainable(batch: Batch, in_pairs: bool) -> None:
    """Raise for a batch that cannot be trained on."""
    for part in parts_of(batch):
        if isinstance(part, Rollouts):
            if in_pairs and any(count not in (0, 2) for count in part.counts):
                raise ValueError("a loss of pairs needs rows of two, the chosen one first: counts=[2] * pairs")
            continue
        if in_pairs:
            raise ValueError("a loss of pairs needs rows of two, and a mapping has rows of one: use Rollouts")
        given = [name for name, column in part.items() if column is not None]
        if len(given) > 1 and not {"labels", "mask"} & {*given}:
            raise ValueError(
                f"a batch to train on has labels ({IGNORED} where a token does not count) or a mask, but this mapping "
                f"has {', '.join(map(str, given))}; labels=input_ids, {IGNORED} at padding, counts every token"
            )
