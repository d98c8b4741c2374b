"""Tables: what is made of lazy rows before somebody reads them, as a lazy value of its own."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.lazy_values.lazy import Lazy, as_now, lazy_over, source_of
from twinkle_remote.call.lazy_values.many_calls import ManyCalls
from twinkle_remote.call.tables.hand_over import costs_of_rows, plan_hand_over
from twinkle_remote.call.tables.handed_value import HandedReader, made, read_piece
from twinkle_remote.protocol.handed import HandOver, HandOverPlan
from twinkle_remote.protocol.tables import Concatenated, Constant, Given, Joined, Narrowed, Selected, Taken
from twinkle_remote.sessions.current import running
from twinkle_remote.values.costs import costs_of
from twinkle_remote.values.picking import count_rows
from twinkle_remote.values.wanted_columns import only_read

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from twinkle_remote.call.pending.pending_call import PendingCall
    from twinkle_remote.protocol.handed import HandedPiece, HandedValue
    from twinkle_remote.protocol.messages import Outcome
    from twinkle_remote.protocol.tables import Node, Reads


class Table(ManyCalls):
    """Rows of lazy results by a plan. It keeps these alive, and no longer than it lives itself.

    Args:
        node: The plan.
        leaves: The lazy results that it names, none of them a table.
    """

    __slots__ = ("leaves", "node")

    def __init__(self, node: Node, leaves: Sequence[Lazy[Any]]) -> None:
        super().__init__([call for leaf in leaves for call in source_of(leaf).calls])
        self.node, self.leaves = node, tuple(leaves)

    def value(self, timeout: float | None) -> Any:
        """Wait for the calls, and fetch the rows that the plan names to this process; see `Lazy.result`."""
        began = time.monotonic()
        self.wait(timeout)
        if running().served is not None:
            return made(self.node, [leaf.result(timeout) for leaf in self.leaves])
        by, given, made_by = self._planned()

        def read(piece: HandedPiece) -> Any:
            maker = made_by.get(id(piece.payload))
            if maker is None:  # a plain value
                return read_piece(running().backend.store, piece)[0]
            call, outcome = maker
            return call.fetch(outcome, timeout, began, piece)

        return HandedReader(read, self.describe()).value(by, given)

    def rows(self) -> int | None:
        """The number of its rows, of calls that are done; None where only the value shows it.

        Raises:
            RowIndexError: There is no row of a number.
            ColumnError: There is no column of a name.
        """
        if running().served is not None:
            return None
        _, given, _ = self._planned()
        if given.refusal is not None:
            kind, text = given.refusal
            raise kind(text)
        return None if given.whole else _rows(given)

    def describe(self) -> str:
        """The names of the calls."""
        return f"a table of {', '.join(dict.fromkeys(call.name for call in self.calls))}"

    def released(self) -> None:
        """Called when the lazy result is deleted: the leaves are, too."""

    def hand_over(self, offset: int) -> tuple[Sequence[tuple[PendingCall, int]], HandOver]:
        """The outcomes that a consumer reads, and the plan; see `LazySource`."""
        inputs: list[tuple[PendingCall, int]] = []
        parts = []
        for leaf in self.leaves:
            own, by = source_of(leaf).hand_over(offset + len(inputs))
            inputs += own
            parts.append(by)
        return inputs, HandOver(offset, offset + len(inputs), "table", table=self.node, parts=tuple(parts))

    def costs(self) -> tuple[bool, Sequence[float] | None]:
        """Whether its rows are known before it is read, and then their costs; of calls that are done."""
        inputs, by = self.hand_over(0)
        return costs_of_rows(by, [call.outcome(rank) for call, rank in inputs])

    def _planned(self) -> tuple[HandOver, HandedValue, dict[int, tuple[PendingCall, Outcome]]]:
        """The hand-over of its calls, which are done; the pieces that are read; and the call that made each payload."""
        inputs, by = self.hand_over(0)
        outcomes = [call.outcome(rank) for call, rank in inputs]
        plan = HandOverPlan(self.describe(), (by,), ((0,),))
        (share,) = plan_hand_over(plan, outcomes)
        made_by = {id(outcome.payload): (call, outcome) for (call, _), outcome in zip(inputs, outcomes, strict=True)}
        return by, share.values[0], made_by


class AddedRows(Table):
    """Rows, and the columns that a call adds to them.

    Args:
        node: The plan.
        leaves: The lazy results that it names.
        added: The result of the call.
    """

    __slots__ = ("_added",)

    def __init__(self, node: Node, leaves: Sequence[Lazy[Any]], added: Lazy[Any]) -> None:
        super().__init__(node, leaves)
        self._added = added

    @property
    def own_calls(self) -> Sequence[PendingCall]:
        """The call that adds the columns."""
        return source_of(self._added).own_calls

    def rows(self) -> int | None:
        """The number of its rows; at a server, that of the added columns."""
        if running().served is None:
            return super().rows()
        inputs, by = source_of(self._added).hand_over(0)
        rows = [call.outcome(rank).rows for call, rank in inputs]
        return None if by.padded or None in rows else sum(filter(None, rows))

    def describe(self) -> str:
        """Class.method, and where it runs."""
        return source_of(self._added).describe()


def added_rows(rows: Any, result: Lazy[Any], names: tuple[Hashable, ...]) -> Lazy[Any]:
    """A lazy value of rows with the columns that a call adds to them.

    Args:
        rows: The rows, lazy or plain.
        result: The result of the call: these columns alone.
        names: The columns.
    """
    leaves: dict[int, tuple[int, Lazy[Any]]] = {}
    of_rows = _node(rows, leaves)
    node = Joined((of_rows, Selected(_node(result, leaves), names)))
    return lazy_over(AddedRows(node, [leaf for _, leaf in leaves.values()], result))


def narrowed_lazy(value: Lazy[Any], reads: Reads) -> Lazy[Any]:
    """A lazy value in the columns that a function reads."""
    leaves: dict[int, tuple[int, Lazy[Any]]] = {}
    node = Narrowed(_node(value, leaves), reads)
    return lazy_over(Table(node, [leaf for _, leaf in leaves.values()]))


def with_narrow_constants(value: Lazy[Any], reads: Reads) -> Lazy[Any]:
    """A lazy value whose plain rows have the columns that a function reads, where its plan is sent elsewhere."""
    source = source_of(value)
    if not isinstance(source, Table):
        return value
    node = _narrow_constants(source.node, reads)
    return value if node is source.node else lazy_over(Table(node, source.leaves))


def _narrow_constants(node: Node, reads: Reads) -> Node:
    """The plan, down to where it names columns itself."""
    if isinstance(node, Constant):
        value = only_read(node.value, reads, keeps_rows=True)
        return node if value is node.value else Constant(value)
    if isinstance(node, Concatenated | Joined):
        of = tuple([_narrow_constants(part, reads) for part in node.of])
        return node if all(new is old for new, old in zip(of, node.of, strict=True)) else replace(node, of=of)
    if isinstance(node, Taken):
        rows = _narrow_constants(node.of, reads)
        return node if rows is node.of else replace(node, of=rows)
    return node


def is_table(lazy: Lazy[Any]) -> bool:
    """Whether a lazy value is made of others by a plan."""
    return isinstance(source_of(lazy), Table)


def table_of(values: Sequence[Any], make: Callable[[Sequence[Node]], Node]) -> Any:
    """A lazy value by a plan over values, of which at least one is lazy.

    Args:
        values: Lazy and plain values.
        make: Makes the plan of the plans of the values.
    """
    leaves: dict[int, tuple[int, Lazy[Any]]] = {}
    nodes = [_node(value, leaves) for value in values]
    table = Table(make(nodes), [leaf for _, leaf in leaves.values()])
    if table.done() and not any(call.failed() for call in table.calls):
        table.rows()  # what is wrong is told at once where it is known
    return lazy_over(table)


def _node(value: Any, leaves: dict[int, tuple[int, Lazy[Any]]]) -> Node:
    if not isinstance(value, Lazy):
        count_rows(value, "concat")
        return Constant(as_now(value))
    source = source_of(value)
    if isinstance(source, Table):
        return _renumbered(source.node, [_given(leaf, leaves) for leaf in source.leaves])
    return _given(value, leaves)


def _given(leaf: Lazy[Any], leaves: dict[int, tuple[int, Lazy[Any]]]) -> Given:
    return Given(leaves.setdefault(id(leaf), (len(leaves), leaf))[0])


def _renumbered(node: Node, given: Sequence[Given]) -> Node:
    if isinstance(node, Given):
        return given[node.part]
    if isinstance(node, Constant):
        return node
    if isinstance(node, Concatenated | Joined):
        return replace(node, of=tuple([_renumbered(part, given) for part in node.of]))
    return replace(node, of=_renumbered(node.of, given))


def _rows(given: HandedValue) -> int:
    """The rows that a planned value has."""
    if given.order is not None:
        return len(given.order)
    if given.layers:
        return _rows(given.layers[0])
    return sum([piece.length() or 0 for piece in given.all_pieces()])


def rows_of_lazy(lazy: Lazy[Any], what: str) -> int:
    """Wait for the calls that make a lazy value, and count its rows; fetch rows only if that is necessary.

    Args:
        lazy: The value.
        what: What needs rows, for messages.
    """
    rows = _waited_for(lazy).rows()
    return count_rows(lazy.result(), what) if rows is None else rows


def costs_of_lazy(lazy: Lazy[Any]) -> Sequence[float] | None:
    """Wait for the calls that make a lazy value, and return the costs of its rows; see `costs_of`."""
    known, costs = _waited_for(lazy).costs()
    return costs if known else costs_of(lazy.result())


def _waited_for(lazy: Lazy[Any]) -> Table:
    lazy.wait()
    source = source_of(lazy)
    return source if isinstance(source, Table) else Table(Given(0), (lazy,))
