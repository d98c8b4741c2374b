"""The stored form of values: a reader of some rows does not open the others.

Arrays are stored as they are and cut as views. Tensors are stored as arrays. Long lists of objects are stored as chunks
that are pickled one by one: a reader of a few rows opens only their chunks. A value whose type has a splitter is stored
as it is, also where it has columns: only the splitter knows which part of them belongs to a row.
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
from twinkle_remote import values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_remote.protocol import Columns, Rows

_CHUNKS = 128
_CHUNK_BYTES = 16 * 1024
_SAMPLE = 8
_WORTH_CUTTING = 64 * 1024


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

    def read(self, start: int | None, stop: int | None) -> tuple[list[Any], int]:
        """Return rows [start, stop), all of them by default, and how many bytes were opened for them."""
        start, stop, _ = slice(start, stop).indices(self.bounds[-1])
        heads = memoryview(self.heads)
        out: list[Any] = []
        size = begin = 0
        for i, end in enumerate(self.ends):
            first, last = self.bounds[i], self.bounds[i + 1]
            if first < stop and last > start:
                pickled = Pickled(heads[begin:end], *self.rests[i])
                size += pickled.nbytes
                out.extend(pickled.open()[max(start - first, 0) : stop - first])
            begin = end
        return out, size

    def pick(self, rows: Rows) -> tuple[list[Any], int]:
        """Return rows by their numbers, in their order, and how many bytes were opened for them."""
        heads = memoryview(self.heads)
        opened: dict[int, list[Any]] = {}
        out: list[Any] = []
        size = 0
        for row in rows:
            i = bisect_right(self.bounds, row) - 1
            if i not in opened:
                pickled = Pickled(heads[self.ends[i - 1] if i else 0 : self.ends[i]], *self.rests[i])
                opened[i] = pickled.open()
                size += pickled.nbytes
            out.append(opened[i][row - self.bounds[i]])
        return out, size

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
    return value if _has_splitter(value) else values.map_columns(value, fold)


def unfold(value: Any, start: int | None = None, stop: int | None = None) -> tuple[Any, int]:
    """Return the value of a stored form, or rows [start, stop) of it, and how many bytes of it were opened."""
    if isinstance(value, Chunks):
        return value.read(start, stop)
    if isinstance(value, tensors.ArrayForm):
        own = tensors.tensor(value, start, stop)
        return own, own.nbytes
    parts = None if _has_splitter(value) else values.columns(value)
    if parts is None:
        part = value if start is None or stop is None else values.take(value, start, stop)
        return part, values.opened_bytes(part)
    read = [unfold(part, start, stop) for part in parts.values()]
    size = _by_column(value, parts, read)
    same = all(new is old for (new, _), old in zip(read, parts.values(), strict=True))
    make = values.with_parts if start is None or stop is None else values.rebuild
    return value if same else make(value, [part for part, _ in read]), size


def cut(value: Any, start: int, stop: int) -> Any:
    """Rows [start, stop) of a stored form, in stored form."""
    if isinstance(value, Chunks):
        return value.cut(start, stop)
    if isinstance(value, tensors.ArrayForm):
        return replace(value, array=value.array[start:stop])
    if _has_splitter(value):
        return values.take(value, start, stop)
    return values.map_columns(
        value, lambda part: cut(part, start, stop), lambda leaf: values.take(leaf, start, stop), values.rebuild
    )


def pick(value: Any, rows: Rows | None, names: Columns | None) -> tuple[Any, int]:
    """Rows of a stored form by their numbers, and those of these columns that it has: a value, and the opened bytes.

    Args:
        value: The stored form.
        rows: The rows; None for all.
        names: The columns; None for all.
    """
    some = value if names is None else values.selected_where_there(value, names)
    if rows is None:
        return unfold(some)
    if isinstance(rows, range) and rows.step == 1:
        return unfold(some, rows.start, max(rows.start, rows.stop))
    if isinstance(some, Chunks):
        return some.pick(rows)
    if isinstance(some, tensors.ArrayForm):
        return unfold(replace(some, array=some.array[list(rows)]))
    parts = None if _has_splitter(some) else values.columns(some)
    if parts is None:
        part = values.pick(some, rows)
        return part, values.opened_bytes(part)
    read = [pick(part, rows, None) for part in parts.values()]
    return values.rebuild(some, [part for part, _ in read]), _by_column(some, parts, read)


def _by_column(value: Any, parts: Mapping[Any, object], read: Sequence[tuple[Any, int]]) -> int:
    """The opened bytes of a value with named parts, by its columns where these parts are columns."""
    sizes = [size for _, size in read]
    if isinstance(value, tuple):  # the parts of a named tuple are no columns
        return sum(sizes)
    return values.ColumnBytes(sum(sizes), dict(zip(parts, sizes, strict=True)))


def adjoined(parts: Sequence[tuple[Any, int | None, int | None]]) -> tuple[Any, list[int]] | None:
    """The rows [start, stop) of several stored forms as one value, without a copy, and the bytes of each part.

    Returns:
        None where they are not dense tensors or arrays of one kind, or dicts of such, that lie in segments.
    """
    first = parts[0][0]
    if type(first) is dict:
        if any(type(form) is not dict or list(form) != list(first) for form, _, _ in parts):
            return None
        columns = [adjoined([(form[name], start, stop) for form, start, stop in parts]) for name in first]
        if not columns or any(column is None for column in columns):
            return None
        found = [column for column in columns if column is not None]
        sizes: list[int] = [
            values.ColumnBytes(sum(of_columns), dict(zip(first, of_columns, strict=True)))
            for of_columns in zip(*[sizes for _, sizes in found], strict=True)
        ]
        return {name: value for name, (value, _) in zip(first, found, strict=True)}, sizes
    arrays = _arrays(parts)
    if arrays is None:
        return None
    from twinkle_ray.objects.shared_memory import mappings  # who reads from segments has loaded it

    joined = mappings.adjoined(arrays)
    if joined is None:
        return None
    value = tensors.tensor(replace(first, array=joined)) if isinstance(first, tensors.ArrayForm) else joined
    return value, [array.nbytes for array in arrays]


def _arrays(parts: Sequence[tuple[Any, int | None, int | None]]) -> list[Any] | None:
    """The rows of forms that are tensors, or arrays, of one dtype and of one shape but for their rows."""
    numpy = sys.modules.get("numpy")
    first = parts[0][0]
    of_tensors = isinstance(first, tensors.ArrayForm)
    if numpy is None or (of_tensors and (first.requires_grad or first.device != "cpu")):
        return None
    if not all(type(form) is type(first) for form, _, _ in parts):
        return None
    if of_tensors and len({(form.dtype, form.device, form.requires_grad) for form, _, _ in parts}) > 1:
        return None
    arrays = [form.array if of_tensors else form for form, _, _ in parts]
    if not all(type(array) is numpy.ndarray and array.ndim and not array.dtype.hasobject for array in arrays):
        return None
    if len({(array.dtype, array.dtype.metadata is None, array.shape[1:]) for array in arrays}) > 1:
        return None
    return [
        array if start is None else array[start:stop] for array, (_, start, stop) in zip(arrays, parts, strict=True)
    ]


def _has_splitter(value: Any) -> bool:
    return values.splitter_of(type(value)) is not None


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
