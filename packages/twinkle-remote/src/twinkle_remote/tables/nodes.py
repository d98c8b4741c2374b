"""The nodes of a table: a tree that says how rows are made of stored values. It is small, and travels in their place.

A node is a value: it never changes, and several nodes may share one below them. In a program the payload of a leaf is a
lazy result, a `RankResult` or a plain value. Where the table is handed to a call, `plan.bound` makes these an `Input`
among the outcomes that the call waits for, and `plan.resolve` puts the payloads and the counts there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.call.pending import PendingCall
    from twinkle_remote.protocol.messages import Outcome

Rows: TypeAlias = range | tuple[int, ...]
"""Numbers of rows, from 0: a range of step 1, or numbers in any order, also repeated."""

Columns: TypeAlias = "tuple[Hashable, ...]"
"""Names of columns."""

Piece: TypeAlias = "tuple[Rows | None, Columns | None]"
"""The rows and the columns, of those that are there, of a stored value that are read; None for all."""


@dataclass(frozen=True, slots=True)
class Input:
    """Stands for an outcome that a call waits for, by its index among them."""

    index: int


class RankResult(NamedTuple):
    """Stands for what one rank of a call returns."""

    call: PendingCall
    rank: int


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows of a stored value: of what one rank returned, or of a plain value.

    Attributes:
        payload: Names the value in the store, or is the value, or stands for it; see above.
        rows: Those that are wanted; None for all.
        count: Number of rows of the whole value; None where it has none, or nobody knows.
        names: Its columns where it is a mapping: other parts may have other columns. None for everything else.
    """

    payload: object
    rows: Rows | None = None
    count: int | None = None
    names: Columns | None = None


@dataclass(frozen=True, slots=True)
class Combined:
    """The value that a call's collect makes of what its ranks returned. `resolve` makes a `Concat` of joined rows.

    Attributes:
        of: What the ranks returned, in the order of the collect.
        how: "rows" joins them, "list" makes a list of them, "one" is the single one; any other value is a collect.
        mesh: The call's mesh, for a callable collect.
        name: Class.method, for messages.
        once: Indexes of those that count if the ranks had no rows of their own; None if all count.
        rows_given: The rows that each rank received.
        numbers: The numbers of these rows in the call, where they do not follow each other from rank to rank.
    """

    of: tuple[StoredRows, ...]
    how: Any
    mesh: DeviceMesh | None = None
    name: str = "value"
    once: tuple[int, ...] | None = None
    rows_given: tuple[int | None, ...] = ()
    numbers: tuple[Rows, ...] = ()

    def over(self, outcomes: Sequence[Outcome]) -> Combined:
        """The same with the rows that the ranks of these outcomes received."""
        weighs = self.how == "mean"
        given = tuple([outcome.weighing if weighs else outcome.rows_given for outcome in outcomes])
        numbers = tuple([outcome.numbers for outcome in outcomes if outcome.numbers is not None])
        return replace(self, rows_given=given, numbers=numbers if len(numbers) == len(outcomes) else ())


@dataclass(frozen=True, slots=True)
class Take:
    """Some rows of a table, as they were asked for; `resolve` leaves it only where rows cannot be counted.

    Attributes:
        of: The table.
        rows: A slice, or numbers, of which negative ones count from the end.
    """

    of: Node
    rows: slice | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Concat:
    """The rows of several tables, one after the other.

    Attributes:
        of: At least one.
        ends: For each table, the number of rows up to its end, from 0 before the first; empty where they are not known.
        order: The rows that are wanted, by their numbers among all; None for all.
        results: The name of the call whose ranks returned them; None where a program joins them.
        kinds: For each table, which columns it has, as a number; empty where all have the same. Rows have None in the
            columns that they lack, so that a part of them needs the names of all.
        names: All columns; None where they are not known, or the type has none.
    """

    of: tuple[Node, ...]
    ends: tuple[int, ...] = ()
    order: Rows | None = None
    results: str | None = None
    kinds: tuple[int, ...] = ()
    names: frozenset[Hashable] | None = None


@dataclass(frozen=True, slots=True)
class Join:
    """The columns of several tables, row next to row; a later one wins a name.

    Attributes:
        of: At least one.
        counted: The rows of all are counted, and as many.
        names: All columns; None where they are not known, or the type has none.
    """

    of: tuple[Node, ...]
    counted: bool = False
    names: frozenset[Hashable] | None = None


@dataclass(frozen=True, slots=True)
class Select:
    """Some columns of a table.

    Attributes:
        of: The table.
        names: At least one.
    """

    of: Node
    names: Columns


Node: TypeAlias = StoredRows | Combined | Take | Concat | Join | Select


def below(node: Node) -> tuple[Node, ...]:
    """The nodes that a node is made of."""
    if isinstance(node, Combined | Concat | Join):
        return node.of
    return (node.of,) if isinstance(node, Take | Select) else ()


def leaves(node: Node) -> Iterator[StoredRows]:
    """The stored values of a table, each node once."""
    seen: set[int] = set()
    open_ones = [node]
    while open_ones:
        one = open_ones.pop()
        if id(one) not in seen:
            seen.add(id(one))
            open_ones += reversed(below(one))
            if isinstance(one, StoredRows):
                yield one


class LazyArgument(NamedTuple):
    """A lazy result among the arguments of a call.

    Attributes:
        node: Its rows; the places are those of the call's inputs.
        split: Each share takes its part of the rows; otherwise it takes the whole value.
    """

    node: Node
    split: bool = False


@dataclass(frozen=True, slots=True)
class LazySlot:
    """Placeholder for a lazy result among the arguments of a task.

    Attributes:
        index: Index among what the task reads.
        split: Take only this rank's share of its rows.
    """

    index: int
    split: bool
