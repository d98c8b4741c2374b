"""A batch: a tuple of samples that knows where they come from, registered as rows.

A tuple cannot be reordered in place, so the indices and flags stay with their rows. Whoever wants rows of their own
makes a list: `[*batch]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, TypeVar, overload

from twinkle_remote import register_rows, register_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

T = TypeVar("T")


class BatchInfo(NamedTuple):
    """Position and rows of a batch; `indices` and `valid` have an entry for each row, as those of `Batch`."""

    epoch: int
    position: int
    indices: list[int]
    valid: list[bool]
    rows: int  # samples of the global batch, without those that fill it up


class Batch(tuple[T, ...]):
    """Samples with their indices and flags; a slice keeps its part of both.

    Args:
        samples: The rows.
        epoch: Epoch, from 0.
        position: Samples of the epoch before the global batch.
        indices: Index in the dataset of each row.
        valid: False for rows that fill up a batch, and for rows in place of samples that cannot be read; leave these
            out of every mean.
        sharded: The rows are one rank's share, read in its worker; a dispatch does not divide them again.

    Raises:
        ValueError: There is not one index and one flag for each row.
    """

    epoch: int
    position: int
    indices: list[int]
    valid: list[bool]
    sharded: bool

    def __new__(
        cls,
        samples: Iterable[T],
        *,
        indices: Iterable[int],
        valid: Iterable[bool],
        epoch: int = 0,
        position: int = 0,
        sharded: bool = False,
    ) -> Batch[T]:
        """A batch of these rows."""
        made = super().__new__(cls, samples)
        made.epoch, made.position, made.sharded = epoch, position, sharded
        made.indices, made.valid = list(indices), list(valid)
        if not len(made) == len(made.indices) == len(made.valid):
            raise ValueError(
                f"a batch has one index and one flag for each sample, got {len(made)} samples, "
                f"{len(made.indices)} indices and {len(made.valid)} flags"
            )
        return made

    @overload
    def __getitem__(self, key: SupportsIndex, /) -> T: ...
    @overload
    def __getitem__(self, key: slice, /) -> Batch[T]: ...
    def __getitem__(self, key: SupportsIndex | slice, /) -> T | Batch[T]:
        if not isinstance(key, slice):
            return super().__getitem__(key)
        return self._with(super().__getitem__(key), self.indices[key], self.valid[key])

    def take(self, rows: Sequence[int]) -> Batch[T]:
        """The rows at some positions of the batch, in that order, with their indices and flags."""
        return self._with(
            [self[row] for row in rows], [self.indices[row] for row in rows], [self.valid[row] for row in rows]
        )

    def _with(self, samples: Iterable[T], indices: Iterable[int], valid: Iterable[bool]) -> Batch[T]:
        return Batch(
            samples, indices=indices, valid=valid, epoch=self.epoch, position=self.position, sharded=self.sharded
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_plain, (_to_plain(self),)

    def __repr__(self) -> str:
        masked = self.valid.count(False)
        more = f", masked={masked}" if masked else ""
        return f"Batch({list(self)!r}, epoch={self.epoch}, position={self.position}{more})"


def _joined(batches: Sequence[Batch[Any]]) -> Batch[Any]:
    """The rows of batches after each other; epoch and position stay."""
    return Batch(
        [sample for batch in batches for sample in batch],
        indices=[index for batch in batches for index in batch.indices],
        valid=[flag for batch in batches for flag in batch.valid],
        epoch=batches[0].epoch,
        position=batches[0].position,
    )


def _to_plain(batch: Batch[Any]) -> list[Any]:
    return [list(batch), batch.epoch, batch.position, batch.indices, batch.valid, batch.sharded]


def _from_plain(plain: list[Any]) -> Batch[Any]:
    samples, epoch, position, indices, valid, sharded = plain
    kinds = {*map(type, (epoch, position, *indices))} <= {int} and {*map(type, (sharded, *valid))} <= {bool}
    if not isinstance(samples, list) or not kinds:
        raise ValueError("a batch is samples, epoch, position, indices, flags, and whether it is one rank's share")
    return Batch(samples, indices=indices, valid=valid, epoch=epoch, position=position, sharded=sharded)


register_rows(Batch, take=Batch.take, concat=_joined)
register_type(Batch, to_plain=_to_plain, from_plain=_from_plain)
