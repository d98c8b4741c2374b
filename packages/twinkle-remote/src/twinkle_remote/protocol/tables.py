"""Plans of tables: they say how rows are made of lazy results, and travel in their place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

T = TypeVar("T")

Rows: TypeAlias = range | tuple[int, ...]
"""Numbers of rows, from 0: in any order, also repeated."""


@dataclass(frozen=True, slots=True)
class Reads:
    """The columns that a function reads: a reader fetches those that are there, and has `LeftOut` for the others.

    Attributes:
        names: The columns.
        of: Class.method of the function.
        within: Columns that were selected before, all of which are there; None for all.
        gone: Columns that are known to be there, and that no piece has.
    """

    names: tuple[Hashable, ...]
    of: str
    within: tuple[Hashable, ...] | None = None
    gone: tuple[Hashable, ...] = ()


Columns: TypeAlias = "tuple[Hashable, ...] | Reads"
"""The columns of a piece: some, all of which are there, or those that a function reads."""


@dataclass(frozen=True, slots=True)
class Given:
    """The rows of a lazy result.

    Attributes:
        part: Its index among the parts of the hand-over.
    """

    part: int


@dataclass(frozen=True, slots=True)
class Constant:
    """A plain value next to lazy ones.

    Attributes:
        value: It has rows.
    """

    value: Any


@dataclass(frozen=True, slots=True)
class Taken:
    """Some rows.

    Attributes:
        of: The table that has them.
        rows: A slice, or numbers, of which negative ones count from the end.
    """

    of: Node
    rows: slice | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Concatenated:
    """The rows of several tables, one after the other.

    Attributes:
        of: At least one.
        first: [start, stop) of parts that are concatenated by themselves before the others, inner ones first: frames
            may have other labels then.
    """

    of: tuple[Node, ...]
    first: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Joined:
    """The columns of several tables, row next to row; a later one wins a name.

    Attributes:
        of: At least one.
    """

    of: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Selected:
    """Some columns.

    Attributes:
        of: The table that has them.
        columns: Their names, at least one.
    """

    of: Node
    columns: tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Narrowed:
    """The columns that a function reads.

    Attributes:
        of: The table that has them.
        reads: The columns.
    """

    of: Node
    reads: Reads


@dataclass(frozen=True, slots=True)
class Mapped:
    """The rows that a function makes of all rows.

    Attributes:
        of: The table.
        function: Takes the rows, and returns rows.
    """

    of: Node
    function: Callable[[Any], Any]


def nested(node: Concatenated, parts: Sequence[T], concat: Callable[[Sequence[T]], T]) -> Sequence[T]:
    """The parts of a concatenation after those that are concatenated by themselves.

    Args:
        node: The concatenation.
        parts: One for each of its parts.
        concat: Makes one of several.
    """
    found: list[tuple[int, T]] = []  # with the place of its first part
    inner = iter(node.first)
    due = next(inner, None)
    for place, part in enumerate(parts):
        found.append((place, part))
        while due is not None and due[1] == place + 1:
            within = [one for one in found if one[0] >= due[0]]
            found[-len(within) :] = [(due[0], concat([one for _, one in within]))]
            due = next(inner, None)
    return [part for _, part in found]


Node: TypeAlias = Given | Constant | Taken | Concatenated | Joined | Selected | Narrowed | Mapped


def with_all_columns(node: Node) -> Node:
    """A plan that leaves no column out because nobody reads it; those that were selected stay selected."""
    if isinstance(node, Given | Constant):
        return node
    if isinstance(node, Concatenated | Joined):
        return replace(node, of=tuple([with_all_columns(part) for part in node.of]))
    of = with_all_columns(node.of)
    return of if isinstance(node, Narrowed) else replace(node, of=of)


def constants_of(node: Node) -> Iterator[object]:
    """The plain values of a plan, in the order of the plan."""
    if isinstance(node, Constant):
        yield node.value
    elif isinstance(node, Concatenated | Joined):
        for part in node.of:
            yield from constants_of(part)
    elif not isinstance(node, Given):
        yield from constants_of(node.of)


def joins(node: Node) -> bool:
    """Whether a plan puts several tables one after the other."""
    if isinstance(node, Joined):
        return any(map(joins, node.of))
    if isinstance(node, Concatenated):
        return len(node.of) > 1 or joins(node.of[0])
    return not isinstance(node, Given | Constant) and joins(node.of)
