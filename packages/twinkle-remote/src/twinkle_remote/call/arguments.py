"""Slots: placeholders in the arguments for values that are stored once, or that another call's workers hold.

Arguments are looked through part by part: those of dicts, dataclasses and tuples at any depth, and the items of lists.
Rows that are lists, dicts or tuples themselves are not looked into, because there are many: what stands in them travels
as it is, and a lazy result or a mark there is an error when it is pickled or copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from twinkle_remote.errors import DispatchError
from twinkle_remote.lazy.lazy import Lazy, source_of
from twinkle_remote.protocol.messages import Replicated, StoredSlot
from twinkle_remote.rows.cut import PLAIN, size_in_bytes
from twinkle_remote.rows.plain import map_parts
from twinkle_remote.rows.row_types import row_type_of
from twinkle_remote.rows.unknown import runs_once
from twinkle_remote.tables.nodes import LazyArgument, LazySlot

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_remote.call.pending import PendingCall
    from twinkle_remote.protocol.spec import FunctionSpec

T = TypeVar("T")
_UNSEEN_ROWS = PLAIN | {dict, list, tuple}
_OWN_BYTES = 1 << 20  # of a value for one rank that is stored by itself, which takes as long as to copy so many twice


def Replicate(value: T) -> T:  # noqa: N802  named like the mark; typed as the value that the method receives
    """Mark an argument, or a part of one, that is sent whole to every rank, for every type.

    Args:
        value: What the method receives.
    """
    return cast("T", Replicated(value))


def is_divided(spec: FunctionSpec, name: str, value: object) -> bool:
    """Whether an argument is divided, if it has rows and the dispatch is no callable."""
    if not spec.divides_rows or isinstance(value, Replicated) or not spec.divides(name):
        return False
    return spec.split is not None or spec.divides_all or isinstance(value, list | Lazy)


class Encoder:
    """Replaces values that do not travel inside the task with slots, each value once per call.

    Args:
        put: Stores a large value, as `Store.put` does.
        marks: Marks stay, because another session divides the arguments.

    Attributes:
        lazies: One entry for each lazy result; two if it goes both split and whole.
        inputs: The call and the rank of each outcome that the lazy results read.
        sources: The calls that make the lazy results, each once.
        of_share: For each distinct share of the arguments, the indexes of its entries in `lazies`.
        stored_bytes: Bytes that were put into the store.
        used: Whether a value was replaced.
        to_one: What is encoded now goes to one rank, and not whole to all.
    """

    def __init__(self, put: Callable[[object], tuple[object, int] | None], *, marks: bool = False) -> None:
        self.lazies: list[LazyArgument] = []
        self.inputs: list[tuple[PendingCall, int]] = []
        self.sources: dict[PendingCall, None] = {}
        self.of_share: list[list[int]] = []
        self.stored_bytes = 0
        self.used = self.to_one = False
        self._put, self._marks = put, marks
        self._found: dict[int, tuple[Lazy[Any], LazyArgument]] = {}
        self._indexes: dict[tuple[int, bool], int] = {}
        self._slots: dict[int, LazySlot] = {}
        self._stored: dict[int, tuple[object, StoredSlot | None]] = {}
        self._inside: dict[int, tuple[object, int]] = {}

    def next_share(self) -> None:
        """Begin with the arguments of the next distinct share, whose slots are counted from 0."""
        self._slots = {}
        self.of_share.append([])

    def whole(self, value: Any) -> Any:
        """A value that goes undivided, with slots in place of what is found in it.

        Raises:
            DispatchError: The value is or contains a generator or another iterator that runs only once.
        """
        kind = type(value)
        if kind in PLAIN:
            return value
        if kind is Replicated:
            whole = self.whole(value.value)
            return Replicated(whole) if self._marks else whole
        if kind is Lazy:
            return self.lazy(value, split=False)
        if kind is list:
            return value if _UNSEEN_ROWS.issuperset(map(type, value)) else map_parts(value, self._item)
        if kind is not dict and runs_once(kind):
            raise DispatchError(f"a {kind.__name__} can be neither divided nor sent: it runs once; pass a list")
        return map_parts(value, self.whole, self._stored_or_itself)

    def _item(self, row: Any) -> Any:
        return row if type(row) in _UNSEEN_ROWS else self.whole(row)

    def _stored_or_itself(self, value: Any) -> Any:
        return value if self._goes_inside(value) else self.stored(value) or value

    def _goes_inside(self, value: object) -> bool:
        """Whether a value goes inside the task of the one rank that gets it: hundreds of rows are stored together."""
        if not self.to_one or id(value) in self._stored:
            return False
        share = len(self.of_share)
        return self._inside.setdefault(id(value), (value, share))[1] == share and size_in_bytes(value) < _OWN_BYTES

    def lazy(self, value: Lazy[Any], *, split: bool) -> LazySlot:
        """A slot for a lazy result.

        Args:
            value: The lazy result.
            split: Each rank takes its share of the rows.
        """
        self.used = True
        key = id(value), split
        index = self._indexes.get(key)
        if index is None:
            index = self._indexes[key] = len(self.lazies)
            self.lazies.append(self._hand_over(value)._replace(split=split))
        if index not in self._slots:
            self._slots[index] = LazySlot(len(self._slots), split)
            self.of_share[-1].append(index)
        return self._slots[index]

    def _hand_over(self, value: Lazy[Any]) -> LazyArgument:
        found = self._found.get(id(value))
        if found is None:
            source = source_of(value)
            inputs, argument = source.hand_over(len(self.inputs))
            self.inputs.extend(inputs)
            self.sources.update(dict.fromkeys(source.calls))
            found = self._found[id(value)] = value, argument
        return found[1]

    def stored(self, value: object) -> StoredSlot | None:
        """A slot for the rows of an array or tensor that the store wants; None for any other value."""
        if isinstance(value, list | tuple) or row_type_of(type(value)) is None:
            return None
        if id(value) not in self._stored:
            stored = self._put(value)
            self.stored_bytes += stored[1] if stored else 0
            self._stored[id(value)] = (value, StoredSlot(stored[0]) if stored else None)
        slot = self._stored[id(value)][1]
        self.used = self.used or slot is not None
        return slot


def decode(value: Any, lazy: Callable[[LazySlot], Any], stored: Callable[[StoredSlot], Any]) -> Any:
    """Replace slots with their values; runs on the worker.

    Args:
        value: An argument with slots.
        lazy: Returns the value of a lazy result.
        stored: Returns stored rows.
    """
    kind = type(value)
    if kind in PLAIN or (kind is list and _UNSEEN_ROWS.issuperset(map(type, value))):
        return value
    if kind is LazySlot:
        return lazy(value)
    if kind is StoredSlot:
        return stored(value)
    skipped = _UNSEEN_ROWS if kind is list else PLAIN
    # A function that named itself would be a cycle of references, which keeps the values until the collector comes.
    return map_parts(value, lambda part: part if type(part) in skipped else decode(part, lazy, stored))
