"""A batch: a list of samples with its position in the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, SupportsIndex, TypeVar, overload

from twinkle_remote import register_type
from twinkle_remote.values import register_splitter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

T = TypeVar("T")


class BatchInfo(NamedTuple):
    """Position and rows of a batch.

    Attributes:
        epoch: Epoch, from 0.
        position: Number of samples of the epoch before the global batch.
        indices: Index in the dataset of each of this rank's rows.
        valid: False for fillers and for rows in place of bad samples; apply it before averaging.
        rows: Samples of the global batch, fillers not counted.
    """

    epoch: int
    position: int
    indices: list[int]
    valid: list[bool]
    rows: int


class Batch(list[T], Generic[T]):
    """A list of samples that also carries its epoch, position, indices and mask.

    Attributes:
        epoch: Epoch, from 0.
        position: Number of samples of the epoch before the global batch.
        indices: Index in the dataset of each row.
        valid: False for fillers and for rows in place of bad samples.
        sharded: The rows are one rank's share, made in its worker; a dispatch does not divide them again.
    """

    __slots__ = ("epoch", "indices", "position", "sharded", "valid")

    def __init__(
        self,
        samples: Iterable[T] = (),
        *,
        epoch: int = 0,
        position: int = 0,
        indices: Iterable[int] | None = None,
        valid: Iterable[bool] | None = None,
        sharded: bool = False,
    ) -> None:
        super().__init__(samples)
        self.epoch = epoch
        self.position = position
        self.indices: list[int] = list(range(len(self)) if indices is None else indices)
        self.valid: list[bool] = [True] * len(self) if valid is None else list(valid)
        self.sharded = sharded
        if not len(self) == len(self.indices) == len(self.valid):
            raise ValueError(
                f"a batch has one index and one flag per sample, got {len(self)} samples, "
                f"{len(self.indices)} indices and {len(self.valid)} flags"
            )

    @overload
    def __getitem__(self, key: SupportsIndex, /) -> T: ...
    @overload
    def __getitem__(self, key: slice, /) -> Batch[T]: ...
    def __getitem__(self, key: SupportsIndex | slice, /) -> T | Batch[T]:
        if not isinstance(key, slice):
            return super().__getitem__(key)
        return Batch(
            super().__getitem__(key),
            epoch=self.epoch,
            position=self.position,
            indices=self.indices[key],
            valid=self.valid[key],
            sharded=self.sharded,
        )

    def __copy__(self) -> Batch[T]:
        return self[:]

    def __reduce__(self) -> tuple[Any, ...]:
        # the default pickling of a list loses the slots
        return _rebuild, (list(self), self.epoch, self.position, self.indices, self.valid, self.sharded)

    def __repr__(self) -> str:
        masked = self.valid.count(False)
        return (
            f"Batch({list.__repr__(self)}, epoch={self.epoch}, position={self.position}"
            + (f", masked={masked}" if masked else "")
            + ")"
        )


def _rebuild(
    samples: list[T], epoch: int, position: int, indices: list[int], valid: list[bool], sharded: bool
) -> Batch[T]:
    return Batch(samples, epoch=epoch, position=position, indices=indices, valid=valid, sharded=sharded)


class _BatchSplitter:
    """Splits and joins batches: rows with their indices and flags; epoch and position stay."""

    def length(self, value: Batch[Any]) -> int:
        return len(value)

    def slice(self, value: Batch[Any], start: int, stop: int) -> Batch[Any]:
        return value[start:stop]

    def concat(self, values: Sequence[Batch[Any]]) -> Batch[Any]:
        return Batch(
            [sample for value in values for sample in value],
            epoch=values[0].epoch,
            position=values[0].position,
            indices=[index for value in values for index in value.indices],
            valid=[flag for value in values for flag in value.valid],
        )


def _to_plain(batch: Batch[Any]) -> list[Any]:
    return [list(batch), batch.epoch, batch.position, batch.indices, batch.valid, batch.sharded]


def _from_plain(plain: list[Any]) -> Batch[Any]:
    samples, epoch, position, indices, valid, sharded = plain
    if not isinstance(samples, list) or type(sharded) is not bool or not _are(int, [epoch, position, *indices]):
        raise ValueError("a batch is samples, epoch, position, indices, flags, and whether it is one rank's share")
    if not _are(bool, valid):
        raise ValueError("a batch has a flag for each sample")
    return _rebuild(samples, epoch, position, indices, valid, sharded)


def _are(kind: type, values: list[Any]) -> bool:
    return all(type(value) is kind for value in values)


register_splitter(Batch, _BatchSplitter())
register_type(Batch, to_plain=_to_plain, from_plain=_from_plain)
