"""A batch: a list of samples with its position in the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, SupportsIndex, TypeVar, overload

from twinkle_data.option_checks import whole_number
from twinkle_remote import register_type
from twinkle_remote.values import register_splitter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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

    Methods that reorder or remove rows in place do the same with `indices` and `valid`. Methods that add rows raise
    TypeError, because new rows have no index: use your own list, as in `[*batch, row]`. A row may be replaced, but not
    by another row of the batch: use `sort`, `reverse` or `permute` to move rows.

    Raises:
        TypeError: Rows are given without indices and flags.
        ValueError: There is not one index and one flag for each row.

    Attributes:
        epoch: Epoch, from 0.
        position: Number of samples of the epoch before the global batch.
        indices: Index in the dataset of each row; with flags alone they count from 0.
        valid: False for fillers and for rows in place of bad samples.
        sharded: The rows are one rank's share, read in its worker; a dispatch does not divide them again.
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
        if indices is None and valid is None and len(self):
            raise TypeError(
                f"a batch of {len(self)} rows without indices= and valid=: what rebuilds a list by its type "
                "(send_to_device of accelerate) loses the indices and the mask. Give the loader a collate_fn, hand on "
                "[*batch], or use a list for rows of your own"
            )
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

    @overload
    def __setitem__(self, key: SupportsIndex, value: T, /) -> None: ...
    @overload
    def __setitem__(self, key: slice, value: Iterable[T], /) -> None: ...
    def __setitem__(self, key: SupportsIndex | slice, value: Any, /) -> None:
        """Replace rows by as many rows, such as their tokens.

        Raises:
            TypeError: It would move rows of the batch, or change their number; their indices would stay behind.
        """
        at = range(len(self))[key]
        places, rows = (at, list(value)) if isinstance(at, range) else (range(at, at + 1), [value])
        if len(rows) != len(places):
            raise _refusal(f"{len(rows)} rows cannot take the place of {len(places)}")
        own = {id(row) for row in self}
        moved = [
            place for place, row in zip(places, rows, strict=True) if row is not super(Batch, self).__getitem__(place)
        ]
        # All of them rows of this batch, and not in their places: they were sorted, shuffled or repeated.
        if moved and all(id(row) in own for row in rows):
            raise _refusal(f"row {moved[0]} would be replaced by another row of the batch")
        if isinstance(at, range):
            super().__setitem__(slice(at.start, at.stop if at.stop >= 0 else None, at.step), rows)
        else:
            super().__setitem__(at, value)

    def __delitem__(self, key: SupportsIndex | slice, /) -> None:
        kept = list(range(len(self)))
        del kept[key]
        self._select(kept)

    def permute(self, rows: Iterable[SupportsIndex]) -> None:
        """Put the rows into another order, with their indices and flags.

        Args:
            rows: For each new position, the current position of its row; each of [0, len - 1] once.

        Raises:
            ValueError: A position is repeated or missing.
        """
        order = [whole_number("rows", row) for row in rows]
        if sorted(order) != list(range(len(self))):
            raise ValueError(f"rows={order} must hold each of [0, {len(self) - 1}] once")
        self._select(order)

    def sort(self, *, key: Callable[[T], Any] | None = None, reverse: bool = False) -> None:
        """Sort the rows in place, with their indices and flags."""
        rows: list[Any] = list(self)
        measures = rows if key is None else [key(row) for row in rows]
        self._select(sorted(range(len(rows)), key=measures.__getitem__, reverse=reverse))

    def reverse(self) -> None:
        """Reverse the rows, with their indices and flags."""
        self._select(range(len(self) - 1, -1, -1))

    def pop(self, row: SupportsIndex = -1, /) -> T:
        """Remove a row, with its index and flag, and return it."""
        if not self:
            raise IndexError("pop from an empty batch")
        found = self[row]
        del self[row]
        return found

    def remove(self, value: T, /) -> None:
        """Remove the first row that equals a value, with its index and flag."""
        del self[self.index(value)]

    def clear(self) -> None:
        """Remove all rows."""
        self._select(())

    def append(self, row: T, /) -> NoReturn:
        """Raise TypeError: a new row has no index."""
        raise _refusal("a new row has no index in the dataset")

    def extend(self, rows: Iterable[T], /) -> NoReturn:
        """Raise TypeError: new rows have no indices."""
        raise _refusal("new rows have no index in the dataset")

    def insert(self, at: SupportsIndex, row: T, /) -> NoReturn:
        """Raise TypeError: a new row has no index."""
        raise _refusal("a new row has no index in the dataset")

    def __iadd__(self, rows: Iterable[T], /) -> NoReturn:  # type: ignore[misc, override]  # a list's returns itself
        raise _refusal("new rows have no index in the dataset")

    def __imul__(self, times: SupportsIndex, /) -> NoReturn:
        raise _refusal("rows that are repeated are counted twice")

    def _select(self, rows: Iterable[int]) -> None:
        """Keep the given rows, in their order."""
        chosen = list(rows)
        samples, indices, valid = list(self), self.indices, self.valid
        super().__setitem__(slice(None), [samples[row] for row in chosen])
        self.indices, self.valid = [indices[row] for row in chosen], [valid[row] for row in chosen]

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


def _refusal(why: str) -> TypeError:
    return TypeError(
        f"a batch keeps indices and valid with its rows: {why}. Use a list, as in [*batch], for rows of your own; "
        "use batch.sort, batch.reverse or batch.permute to move rows"
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
