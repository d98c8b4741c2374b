"""Divides the arguments of a call over the called ranks, with slots for what does not travel inside the tasks.

A slot stands for a value that is stored once, or that another call's workers hold. Arguments are looked through part by
part: those of dicts, dataclasses and tuples at any depth, and the items of lists. Rows that are lists, dicts or tuples
themselves are not looked into, because there are many: a lazy result or a mark there is an error when it is pickled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from twinkle_mesh import balanced_slice
from twinkle_remote.errors import DispatchError
from twinkle_remote.lazy.lazy import Lazy, source_of
from twinkle_remote.protocol.messages import Replicated, StoredSlot
from twinkle_remote.protocol.spec import DISPATCH
from twinkle_remote.rows.cut import (
    PLAIN,
    common_length,
    costs_of,
    is_unknown_object,
    may_have_rows,
    refuse_unknown,
    size_in_bytes,
    take,
)
from twinkle_remote.rows.plain import map_parts
from twinkle_remote.rows.records import part_path, parts_of, rebuild
from twinkle_remote.rows.row_types import row_type_of
from twinkle_remote.rows.unknown import runs_once
from twinkle_remote.tables.balance import divided
from twinkle_remote.tables.nodes import LazyArgument, LazySlot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_remote.call.pending import PendingCall
    from twinkle_remote.protocol.messages import Call
    from twinkle_remote.protocol.spec import FunctionSpec
    from twinkle_remote.tables.nodes import Rows


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
        self._indexes: dict[tuple[int, bool], tuple[Lazy[Any], int]] = {}
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
        """A slot for a lazy result."""
        self.used = True
        key = id(value), split
        if key not in self._indexes:
            source = source_of(value)
            inputs, argument = source.hand_over(len(self.inputs))
            self.inputs.extend(inputs)
            self.sources.update(dict.fromkeys(source.calls))
            self._indexes[key] = value, len(self.lazies)
            self.lazies.append(argument._replace(split=split))
        index = self._indexes[key][1]
        if index not in self._slots:
            self._slots[index] = LazySlot(len(self._slots), split)
            self.of_share[-1].append(index)
        return self._slots[index]

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


Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(slots=True)
class Shares:
    """The divided arguments of a call.

    Attributes:
        arguments: Positional and keyword arguments of each distinct share.
        of_rank: For each called rank, the index of its share.
        encoder: Lazy results and stored values among the arguments.
        count: Number of parts that rows are divided into; None when nothing is divided.
        real: Rows of the caller's arguments, before padding or dropping; None if only lazy results have rows.
        parts: The numbers of the rows of each share; empty if the caller cannot count them.
        balanced: The parts are divided by costs, and not one after the other.
        each: Every called rank gets arguments of its own (dispatch "slice", or a callable); None if only lazy results
            have rows.
        undivided: An argument with rows that goes whole although the results are joined, because it is no list.
    """

    arguments: list[Arguments]
    of_rank: Sequence[int]
    encoder: Encoder
    count: int | None = None
    real: int | None = None
    parts: Sequence[Rows] = ()
    each: bool | None = False
    undivided: str | None = None
    balanced: bool = False

    def rows(self, index: int) -> int | None:
        """Rows of one share; None if nothing is split, or the caller cannot count the rows yet."""
        return len(self.parts[index]) if self.parts else None

    def numbers(self, index: int) -> Rows | None:
        """The numbers of the rows of one share, if they are divided by costs."""
        return self.parts[index] if self.balanced else None


def dispatch(call: Call, put: Callable[[object], tuple[object, int] | None], *, marks: bool = False) -> Shares:
    """Divide the arguments of one call over the called ranks.

    Raises:
        DispatchError: Lengths disagree, the rows do not divide as the function asks, a named argument has no rows, or
            an argument is a generator.
    """
    try:
        return _dispatch(call, Encoder(put, marks=marks))
    except DispatchError as error:
        text = str(error)
        raise (error if text.startswith(call.name) else DispatchError(f"{call.name}: {text}")) from None


def _dispatch(call: Call, encoder: Encoder) -> Shares:
    spec, args, kwargs, ranks, mesh = call.spec, call.args, call.kwargs, call.ranks, call.mesh
    if callable(spec.dispatch):
        return _by_callable(spec.dispatch, call, encoder)
    mode = DISPATCH[spec.dispatch]
    if not args and not kwargs:
        return Shares([((), {})], [0] * len(ranks), encoder)
    named = [(key, _marked(spec, key, value)) for key, value in (*zip(call.names, args, strict=True), *kwargs.items())]
    own = [call.own_share and _is_sharded(value) for _, value in named]
    split = [not mine and is_divided(spec, key, value) for mine, (key, value) in zip(own, named, strict=True)]
    found: list[tuple[str, int]] = []
    lazy = False
    for (key, value), is_split in zip(named, split, strict=True):
        if is_split:
            before = len(found)
            handed = _measure(value, key, found)
            lazy = lazy or handed
            if spec.split is not None and value is not None and not handed and len(found) == before:
                raise DispatchError(
                    f"split= names {key}, but {type(value).__name__} {value!r:.40} has no rows; use a list, an array, "
                    "a tensor, or a mapping of such columns"
                )
    real = common_length(found)
    if real is None and not lazy and not any(own):
        encoder.to_one = len(ranks) == 1
        encoder.next_share()
        if mode.shares(ranks, mesh)[1] > 1:
            _refuse_doubled(spec, named)
        undivided = _went_whole(spec, named) if len(ranks) > 1 else None
        return Shares([(encoder.whole(args), encoder.whole(kwargs))], [0] * len(ranks), encoder, undivided=undivided)
    of_rank, count = mode.shares(ranks, mesh)
    total = real or 0
    balanced = spec.balance is not False and real is not None and count > 1 and not any(own)
    if balanced:
        first = next(value for (_, value), is_split in zip(named, split, strict=True) if is_split and _has_rows(value))
        parts = divided(spec.balance, _costs(first), total, count, call.name)
    else:
        parts = [_numbers(balanced_slice(total, count, index)) for index in range(count)]
    arguments: list[Arguments] = []
    for part in parts:
        encoder.next_share()
        cut = _RowSlicer(encoder, part)
        values = []
        for (_, value), is_split in zip(named, split, strict=True):
            encoder.to_one = count == len(ranks) and (is_split or count == 1)
            values.append(cut(value) if is_split else encoder.whole(value))
        arguments.append((tuple(values[: len(args)]), dict(zip(kwargs, values[len(args) :], strict=True))))
    if any(own):
        length = len(next(value for mine, (_, value) in zip(own, named, strict=True) if mine))
        parts = [range(length)] * count
    elif real is None:
        parts = []
    each = (bool(parts) or None) if mode.each else False
    return Shares(arguments, of_rank, encoder, count, real, parts, each, balanced=balanced)


def _by_callable(divide: Callable[..., Any], call: Call, encoder: Encoder) -> Shares:
    encoder.to_one = True
    arguments: list[Arguments] = []
    for i in range(len(call.ranks)):
        made: Any = divide(len(call.ranks), i, call.args, dict(call.kwargs), call.mesh)
        if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], dict)):
            raise DispatchError(f"a callable dispatch returns (args, kwargs) for worker {i}, got {made!r:.80}")
        encoder.next_share()
        arguments.append((encoder.whole(tuple(made[0])), encoder.whole(made[1])))
    return Shares(arguments, range(len(call.ranks)), encoder, each=True)


def _numbers(part: slice) -> range:
    return range(part.start, part.stop)


def _has_rows(value: object) -> bool:
    return isinstance(value, Lazy) or may_have_rows(value)


def _costs(value: Any) -> Sequence[float] | None:
    """The costs of the rows of the argument by which a call is divided; those of a lazy one are waited for."""
    if not isinstance(value, Lazy):
        return costs_of(value)
    from twinkle_remote.lazy.table import costs_of_lazy  # few calls divide plain arguments by lazy ones

    return costs_of_lazy(value)


def _is_sharded(value: object) -> bool:
    return type(value) is not Lazy and getattr(value, "sharded", False) is True


def _marked(spec: FunctionSpec, name: str, value: Any) -> Any:
    """An argument whose columns that go whole are marked so."""
    whole = spec.whole_columns(name) if spec.replicate else ()
    parts = parts_of(value) if whole and not isinstance(value, Replicated | Lazy) else None
    if parts is None or parts.keys().isdisjoint(whole):
        return value
    return rebuild(value, [Replicate(part) if key in whole else part for key, part in parts.items()])


def _went_whole(spec: FunctionSpec, named: Sequence[tuple[str, object]]) -> str | None:
    """The first argument with rows that dispatch "slice" sends whole to ranks whose results are joined."""
    if spec.mode is None or spec.mode.divides != "lists" or spec.collect != "flatten" or spec.split is not None:
        return None
    for name, value in named:
        marked = isinstance(value, Replicated) or spec.names(spec.replicate, name)
        if not marked and not isinstance(value, Lazy) and may_have_rows(value):
            return f"{name}, a {type(value).__name__}"
    return None


def _refuse_doubled(spec: FunctionSpec, named: Sequence[tuple[str, object]]) -> None:
    """Refuse an object of an unknown class where nothing is divided and the ranks' rows are joined.

    Each rank would get the whole object, and return its rows: they would come back once for each rank.

    Raises:
        DispatchError: An argument is such an object, and says by no mark that it goes whole.
    """
    if spec.collect != "flatten" or not spec.divides_rows:
        return
    for name, value in named:
        marked = isinstance(value, Replicated | Lazy) or not spec.divides(name)
        if not marked and is_unknown_object(value):
            kind = type(value)
            raise DispatchError(
                f"nothing is divided, and flatten would join what each rank makes of {name}, a {kind.__module__}."
                f"{kind.__qualname__}: whether it holds rows is not known. Pass Replicate(value) if it goes whole, its "
                f"rows as a list, a dict or a dataclass, or teach it with register_rows({kind.__name__}, ...)"
            )


def _measure(value: object, path: str, found: list[tuple[str, int]]) -> bool:
    """Append each part's path and number of rows to `found`; returns whether a part is a lazy result."""
    if isinstance(value, Replicated | Lazy):
        return isinstance(value, Lazy)
    kind = row_type_of(type(value))
    rows = None if kind is None else kind.length(value)
    if rows is not None:
        found.append((path, rows))
        return False
    parts = parts_of(value)
    if parts is None:
        refuse_unknown(value, path)
        return False
    handed = [_measure(part, part_path(path, value, key), found) for key, part in parts.items()]
    return any(handed)


class _RowSlicer:
    """Cuts some rows out of one argument, at any depth of dicts, dataclasses and tuples."""

    def __init__(self, encoder: Encoder, rows: Rows) -> None:
        self._encoder, self._rows = encoder, rows

    def __call__(self, value: Any) -> Any:
        if isinstance(value, Lazy):
            return self._encoder.lazy(value, split=True)
        if isinstance(value, Replicated):
            return self._encoder.whole(value)
        kind = row_type_of(type(value))
        if kind is not None and kind.length(value) is not None:
            stored = self._encoder.stored(value)
            return self._encoder.whole(take(value, self._rows)) if stored is None else stored._replace(rows=self._rows)
        parts = parts_of(value)
        if parts is None:
            return self._encoder.whole(value)
        fresh = [self(part) for part in parts.values()]
        same = all(new is old for new, old in zip(fresh, parts.values(), strict=True))
        return value if same else rebuild(value, fresh)
