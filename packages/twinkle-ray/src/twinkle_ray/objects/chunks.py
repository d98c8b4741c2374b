"""The stored form of values: a reader of some rows does not open the others.

Arrays are stored as they are and cut as views. Tensors are stored as arrays. Long lists of objects are stored as chunks
that are pickled one by one: a reader of a few rows opens only their chunks. A value of a row type is stored as it is,
also where it has columns: only the row type knows which part of them belongs to a row.
"""

from __future__ import annotations

import itertools
import pickle
import sys
from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from twinkle_ray.objects import tensors
from twinkle_ray.objects.pickling import Pickled, pack
from twinkle_remote import rows as values

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from twinkle_remote.protocol import Columns, Rows

_CHUNKS = 128
_CHUNK_BYTES = 16 * 1024
_SAMPLE = 8
_WORTH_CUTTING = 64 * 1024
_PIECES = 32
_PIECE_BYTES = 1 << 20  # a smaller piece costs more than its bytes


class Chunks:
    """A list, pickled in pieces.

    Args:
        bounds: First row of each piece, and the number of rows at the end.
        heads: The pickles of the pieces, one after the other.
        ends: Where each pickle ends.
        rests: Buffers and refs of each piece.
    """

    __slots__ = ("bounds", "ends", "heads", "rests")

    def __init__(
        self, bounds: Sequence[int], heads: Any, ends: Sequence[int], rests: Sequence[tuple[Any, ...]]
    ) -> None:
        self.bounds = tuple(bounds)
        self.heads = heads
        self.ends = tuple(ends)
        self.rests = tuple(rests)

    def __reduce__(self) -> tuple[Any, ...]:
        rests = [(tuple(map(pickle.PickleBuffer, buffers)), refs) for buffers, refs in self.rests]
        return Chunks, (self.bounds, pickle.PickleBuffer(self.heads), self.ends, rests)

    @property
    def nbytes(self) -> int:
        """Bytes of the pickles and their buffers."""
        buffers = sum([memoryview(buffer).nbytes for of_piece, _ in self.rests for buffer in of_piece])
        return buffers + (self.ends[-1] if self.ends else 0)

    def read(self, rows: Rows | None) -> tuple[list[Any], int]:
        """Return rows by their numbers, in their order, all of them for None, and how many bytes were opened."""
        heads, size = memoryview(self.heads), 0
        opened: dict[int, list[Any]] = {}

        def piece(index: int) -> list[Any]:
            nonlocal size
            if index not in opened:
                begin = self.ends[index - 1] if index else 0
                pickled = Pickled(heads[begin : self.ends[index]], *self.rests[index])
                opened[index], size = pickled.open(), size + pickled.nbytes
            return opened[index]

        wanted = range(self.bounds[-1]) if rows is None else rows
        if not (isinstance(wanted, range) and wanted.step == 1):
            places = [(bisect_right(self.bounds, row) - 1, row) for row in wanted]
            return [piece(index)[row - self.bounds[index]] for index, row in places], size
        found: list[Any] = []
        for index, (first, last) in enumerate(itertools.pairwise(self.bounds)):
            if first < wanted.stop and last > wanted.start:
                found += piece(index)[max(wanted.start - first, 0) : wanted.stop - first]
        return found, size

    def cut(self, start: int, stop: int) -> Chunks:
        """Return the pieces that hold rows [start, stop); row `start` becomes row 0."""
        used = [i for i in range(len(self.ends)) if self.bounds[i] < stop and self.bounds[i + 1] > start]
        if not used:
            return Chunks((0,), b"", (), ())
        first, last = used[0], used[-1]
        begin = self.ends[first - 1] if first else 0
        bounds = [bound - start for bound in self.bounds[first : last + 2]]
        ends = [end - begin for end in self.ends[first : last + 1]]
        return Chunks(
            bounds, bytes(memoryview(self.heads)[begin : self.ends[last]]), ends, self.rests[first : last + 1]
        )


def fold(value: Any) -> Any:
    """Return the stored form of a value, which is not changed."""
    if type(value) is list:
        size = _size_of(value)
        return _chunked(value, size) if size > _WORTH_CUTTING else value
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        form = None if isinstance(value, torch.nn.Parameter) else tensors.array_form(value)
        return value if form is None or not form.array.ndim else form
    return value if _has_row_type(value) else values.map_record(value, fold)


def unfold(value: Any, rows: Rows | None = None, names: Columns | None = None) -> tuple[Any, int]:
    """Return the value of a stored form, and how many bytes of it were opened.

    Args:
        value: The stored form.
        rows: The numbers of its rows; None for all.
        names: The columns, of those that it has; None for all.
    """
    some = value if names is None else values.selected_where_there(value, names)
    if isinstance(some, Chunks):
        return some.read(rows)
    if isinstance(some, tensors.ArrayForm):
        own = tensors.tensor(some, rows)
        return own, own.nbytes
    parts = None if _has_row_type(some) else values.parts_of(some)
    if parts is None:
        part = some if rows is None else values.take(some, rows)
        return part, values.size_in_bytes(part)
    read = [unfold(part, rows) for part in parts.values()]
    size = sum(opened for _, opened in read)
    same = all(new is old for (new, _), old in zip(read, parts.values(), strict=True))
    make = values.with_parts if rows is None else values.rebuild
    return some if same else make(some, [part for part, _ in read]), size


def cut(value: Any, start: int, stop: int) -> Any:
    """Rows [start, stop) of a stored form, in stored form."""
    if isinstance(value, Chunks):
        return value.cut(start, stop)
    if isinstance(value, tensors.ArrayForm):
        return replace(value, array=value.array[start:stop])
    if _has_row_type(value):
        return values.take(value, range(start, stop))
    return values.map_record(
        value, lambda part: cut(part, start, stop), lambda leaf: values.take(leaf, range(start, stop)), values.rebuild
    )


def piece_bounds(form: Any, nbytes: int) -> tuple[int, ...]:
    """The first row of each piece in which a stored form is stored, and the number of rows; empty for no pieces.

    Args:
        form: The stored form.
        nbytes: Its size.
    """
    pieces = min(_PIECES, nbytes // _PIECE_BYTES)
    count = _rows_in(form) if pieces > 1 and values.come_with_their_class() else None
    if not count:
        return ()
    return (*range(0, count, -(-count // pieces)), count)


def _rows_in(form: Any) -> int | None:
    """Number of rows of a stored form of which joined pieces are what the whole is; None for any other."""
    if isinstance(form, Chunks):
        return form.bounds[-1]
    if isinstance(form, tensors.ArrayForm):
        return None if form.requires_grad else len(form.array)
    kind, torch = values.row_type_of(type(form)), sys.modules.get("torch")
    if isinstance(form, range) or (torch is not None and isinstance(form, torch.Tensor)):
        return None
    if kind is not None:
        return kind.length(form)
    parts = (values.parts_of(form) or {}).values()
    counts = {_rows_in(part) for part in parts if type(part) not in values.PLAIN or part != part}  # NaN
    return counts.pop() if len(counts) == 1 else None


def pieces_of(wanted: Rows, bounds: Sequence[int]) -> Iterator[tuple[int, Rows, Sequence[int]]]:
    """The pieces that hold some rows: index, numbers of the rows in it, and where these stand among all.

    Args:
        wanted: Numbers of rows.
        bounds: Of the pieces.
    """
    if not len(wanted):
        yield 0, range(0), ()
    elif isinstance(wanted, range) and wanted.step == 1:
        for index, (first, last) in enumerate(itertools.pairwise(bounds)):
            own = range(max(wanted.start, first), min(wanted.stop, last))
            if own:
                yield (index, range(own.start - first, own.stop - first), [row - wanted.start for row in own])
    else:
        places: dict[int, list[int]] = {}
        for place, row in enumerate(wanted):
            places.setdefault(bisect_right(bounds, row) - 1, []).append(place)
        for index, of_piece in places.items():
            yield index, tuple([wanted[place] - bounds[index] for place in of_piece]), of_piece


def joined(parts: Sequence[Any], order: Sequence[int]) -> Any:
    """The rows of pieces, each at its place."""
    if len(parts) == 1:
        return parts[0]
    from twinkle_remote import concat  # most workers join nothing

    whole = concat(parts)
    if all(place == number for number, place in enumerate(order)):
        return whole
    return values.take(whole, tuple(sorted(range(len(order)), key=order.__getitem__)))


def _has_row_type(value: Any) -> bool:
    return values.row_type_of(type(value)) is not None


def _size_of(value: list[Any]) -> int:
    """About how many bytes a list has, of which a few rows are measured; 0 for a list that is not cut."""
    if len(value) <= 1:
        return 0
    sample = value[:: max(1, len(value) // _SAMPLE)]
    plain = values.PLAIN.issuperset(map(type, sample))
    size = sum(len(row) if isinstance(row, str | bytes) else 8 for row in sample) if plain else pack(sample).nbytes
    return size * len(value) // len(sample)


def _chunked(value: list[Any], size: int) -> Chunks:
    step = -(-len(value) // min(_CHUNKS, max(1, size // _CHUNK_BYTES)))
    bounds = [*range(0, len(value), step), len(value)]
    pieces = [pack(value[first:end]) for first, end in itertools.pairwise(bounds)]
    ends = list(itertools.accumulate(len(pickled.head) for pickled in pieces))
    heads = b"".join(pickled.head for pickled in pieces)
    return Chunks(bounds, heads, ends, [(pickled.buffers, pickled.refs) for pickled in pieces])
