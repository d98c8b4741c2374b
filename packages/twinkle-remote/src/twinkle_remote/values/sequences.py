"""Rows of lists, tuples and ranges; a subclass keeps its type and its attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_remote.errors import DispatchError
from twinkle_remote.values.attributes import carried, common_attributes, set_attributes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from twinkle_remote.protocol.tables import Rows


def sequence_like(value: Any, rows: Iterable[object], attributes: dict[str, object] | None = None) -> Any:
    """A list or tuple of these rows, of the type of another one, which is made without its constructor."""
    kind = type(value)
    if kind is list or kind is tuple:
        return kind(rows)
    if isinstance(value, tuple):
        try:
            made: Any = tuple.__new__(kind, rows)
        except TypeError:  # a type in C that makes its values itself, such as torch.Size
            made = kind(rows)
    else:
        made = list.__new__(kind)
        list.extend(made, rows)
    set_attributes(made, attributes or {})
    return made


class Lists:
    """Splitter for lists: their rows are the elements that they hold, whatever a subclass makes of them."""

    def length(self, value: list[object]) -> int:
        """Number of elements.

        Raises:
            DispatchError: A subclass holds its elements elsewhere.
        """
        return list.__len__(value) if type(value) is list else _held(value, list.__len__(value))

    def slice(self, value: list[object], start: int, stop: int) -> Any:
        """Elements [start, stop)."""
        if type(value) is list:
            return value[start:stop]
        own = _own_slice(value, start, stop)
        return sequence_like(value, list.__getitem__(value, slice(start, stop)), carried(value)) if own is None else own

    def take(self, value: list[object], rows: Rows) -> Any:
        """Elements of these numbers."""
        if type(value) is list:
            return [value[row] for row in rows]
        if type(value).__getitem__ is not list.__getitem__:
            return by_runs(self, value, rows)
        return sequence_like(value, [list.__getitem__(value, row) for row in rows], carried(value))

    def concat(self, values: Sequence[list[object]]) -> Any:
        """The elements of all lists; those of subclasses are of one type, with the same attributes."""
        rows = [row for value in values for row in list.__iter__(value)]
        return _of_one_type(values, rows)


class Tuples:
    """Splitter for tuples."""

    def length(self, value: tuple[object, ...]) -> int:
        """Number of elements.

        Raises:
            DispatchError: A subclass holds its elements elsewhere.
        """
        return tuple.__len__(value) if type(value) is tuple else _held(value, tuple.__len__(value))

    def slice(self, value: tuple[object, ...], start: int, stop: int) -> Any:
        """Elements [start, stop)."""
        if type(value) is tuple:
            return value[start:stop]
        own = _own_slice(value, start, stop)
        return (
            sequence_like(value, tuple.__getitem__(value, slice(start, stop)), carried(value)) if own is None else own
        )

    def take(self, value: tuple[object, ...], rows: Rows) -> Any:
        """Elements of these numbers."""
        if type(value) is tuple:
            return tuple([value[row] for row in rows])
        if type(value).__getitem__ is not tuple.__getitem__:
            return by_runs(self, value, rows)
        return sequence_like(value, [tuple.__getitem__(value, row) for row in rows], carried(value))

    def concat(self, values: Sequence[tuple[object, ...]]) -> Any:
        """The elements of all tuples; those of subclasses are of one type, with the same attributes."""
        return _of_one_type(values, tuple(row for value in values for row in tuple.__iter__(value)))


def _held(value: Any, held: int) -> int:
    if len(value) != held:
        name = type(value).__name__
        raise DispatchError(
            f"a {name} has the length {len(value)} and holds {held} elements, so where its rows are is not known: pass "
            f"a list, Replicate(value) to send it whole, or teach it with register_splitter({name}, splitter)"
        )
    return held


def _own_slice(value: Any, start: int, stop: int) -> Any:
    """The slice that a subclass makes by itself, if it is one of its own type; None otherwise."""
    kind = type(value)
    if kind.__getitem__ in (list.__getitem__, tuple.__getitem__):
        return None
    part = value[start:stop]
    return part if type(part) is kind and len(part) == max(0, min(stop, len(value)) - start) else None


def _of_one_type(values: Sequence[Any], rows: Any) -> Any:
    first = type(values[0])
    kinds = {type(value).__name__: None for value in values if type(value) is not first}
    if kinds:
        raise ValueError(f"they are of the types {', '.join([first.__name__, *kinds])}")
    if first is list or first is tuple:
        return rows
    return sequence_like(values[0], rows, common_attributes(values))


class Ranges:
    """Splitter for ranges."""

    def length(self, value: range) -> int:
        """Number of elements."""
        return len(value)

    def slice(self, value: range, start: int, stop: int) -> range:
        """Elements [start, stop)."""
        return value[start:stop]

    def take(self, value: range, rows: Rows) -> list[int]:
        """The list of these numbers: those of several parts may not follow each other."""
        return [value[row] for row in rows]

    def concat(self, values: Sequence[range | list[int]]) -> Any:
        """A range if the numbers go on from the first one in its steps, else their list; a padded share is a list."""
        first = next((value for value in values if value), values[0])
        rows = [row for value in values for row in value]
        if not isinstance(first, range):
            return rows
        whole = range(first.start, first.start + first.step * len(rows), first.step)
        return whole if list(whole) == rows else rows


def runs_of(rows: Rows) -> Iterator[range]:
    """Ranges of numbers that follow each other, in order."""
    if isinstance(rows, range) and rows.step == 1:
        if rows:
            yield rows
        return
    start = stop = None
    for row in rows:
        if row != stop:
            if start is not None and stop is not None:
                yield range(start, stop)
            start = row
        stop = row + 1
    if start is not None and stop is not None:
        yield range(start, stop)


def by_runs(splitter: Any, value: Any, rows: Rows) -> Any:
    """Rows of a value, of which a splitter cuts each run of numbers.

    Args:
        splitter: That of the value's type.
        value: It has rows.
        rows: Their numbers.
    """
    parts = [splitter.slice(value, run.start, run.stop) for run in runs_of(rows)]
    if not parts:
        return splitter.slice(value, 0, 0)
    return parts[0] if len(parts) == 1 else splitter.concat(parts)
