"""A table as a lazy value: what is made of lazy rows before somebody reads them."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from twinkle_remote.lazy.lazy import Lazy, LazySource, as_now, lazy_over, source_of
from twinkle_remote.rows.columns import count_rows, names_of
from twinkle_remote.rows.cut import costs_of
from twinkle_remote.sessions.session import running
from twinkle_remote.tables.balance import row_costs
from twinkle_remote.tables.nodes import Concat, Input, LazyArgument, RankResult, StoredRows, leaves
from twinkle_remote.tables.plan import bound, count, resolve
from twinkle_remote.tables.read import read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from twinkle_remote.call.pending import PendingCall
    from twinkle_remote.protocol.messages import Outcome
    from twinkle_remote.tables.nodes import Columns, Node, Rows


class Table(LazySource):
    """Rows of lazy results, and of what ranks return. It keeps these alive, and no longer than it lives itself."""

    __slots__ = ("node",)

    def __init__(self, node: Node) -> None:
        super().__init__([call for leaf in leaves(node) for call in _calls_of(leaf.payload)])
        self.node = node

    def value(self, timeout: float | None) -> Any:
        """Wait for the calls, and fetch the rows to this process; see `Lazy.result`."""
        began = time.monotonic()
        self.wait(timeout)
        node, made_by = self.resolved()

        def fetch(payload: object, rows: Rows | None, names: Columns | None) -> Any:
            maker = made_by.get(id(payload))
            if maker is None:  # a plain value
                return running().backend.store.get(payload, rows, names)[0]
            call, outcome = maker
            return call.fetch(outcome, timeout, began, (rows, names))

        return read(node, fetch)

    def resolved(self) -> tuple[Node, dict[int, tuple[PendingCall, Outcome]]]:
        """The table over its calls, which are done, and the call that made each payload.

        Raises:
            RowIndexError: There is no row of a number.
            DispatchError: The columns of tables are joined whose rows differ in number.
        """
        inputs, argument = self.hand_over(0)
        outcomes = [call.outcome(rank) for call, rank in inputs]
        made_by = {id(outcome.payload): (call, outcome) for (call, _), outcome in zip(inputs, outcomes, strict=True)}
        return resolve(argument.node, outcomes), made_by

    def describe(self) -> str:
        """The names of the calls."""
        return f"a table of {', '.join(dict.fromkeys(call.name for call in self.calls))}"

    def released(self) -> None:
        """Called when the lazy result is deleted: those that the table is made of are, too, where nobody has them."""

    def hand_over(self, offset: int) -> tuple[Sequence[tuple[PendingCall, int]], LazyArgument]:
        """The outcomes that a consumer reads, and its rows; see `LazySource`."""
        inputs: list[tuple[PendingCall, int]] = []
        found: dict[int, Node] = {}

        def leaf(node: StoredRows) -> Node:
            value = node.payload
            if isinstance(value, RankResult):
                value.call.handed_on = True
                inputs.append(value)
                return replace(node, payload=Input(offset + len(inputs) - 1))
            if isinstance(value, Lazy) and id(value) not in found:
                own, argument = source_of(value).hand_over(offset + len(inputs))
                inputs.extend(own)
                found[id(value)] = argument.node
            return found.get(id(value), node)

        return inputs, LazyArgument(bound(self.node, leaf))


def _calls_of(payload: object) -> Sequence[PendingCall]:
    if isinstance(payload, Lazy):
        return source_of(payload).calls
    return (payload.call,) if isinstance(payload, RankResult) else ()


def table_of(values: Sequence[Any], make: Callable[[Sequence[Node]], Node]) -> Any:
    """A lazy value over values, of which at least one is lazy.

    Args:
        values: Lazy and plain values.
        make: Makes a table of those of the values.
    """
    table = Table(make(list(map(node_of, values))))
    if table.done() and not any(call.failed() for call in table.calls):
        table.resolved()  # what is wrong is told at once where it is known
    return lazy_over(table)


def node_of(value: Any) -> Node:
    """The table of a value; a plain one is copied as it is now."""
    if isinstance(value, Lazy):
        source = source_of(value)
        return source.node if isinstance(source, Table) else StoredRows(value)
    rows, own = count_rows(value, "concat"), as_now(value)
    stored = running().backend.store.put(own)
    return StoredRows(own if stored is None else stored[0], None, rows, names_of(own))


def rows_of_ranks(call: PendingCall, ranks: Iterable[int]) -> Lazy[Any]:
    """The rows that some ranks of a call return, in their order, as a lazy value; it keeps their results."""
    parts = [StoredRows(RankResult(call, rank)) for rank in ranks]
    return lazy_over(Table(parts[0] if len(parts) == 1 else Concat(tuple(parts), results=call.name)))


def known_rows(lazy: Lazy[Any]) -> int | None:
    """The rows of a lazy result that is done, without fetching it; None if only its value shows them, or it failed."""
    table = Table(node_of(lazy))
    return None if any(call.failed() for call in table.calls) else count(table.resolved()[0])


def rows_of_lazy(lazy: Lazy[Any], what: str) -> int:
    """Wait for the calls that make a lazy value, and count its rows; fetch it only if that is necessary.

    Args:
        lazy: The value.
        what: What needs rows, for messages.
    """
    lazy.wait()
    rows = known_rows(lazy)
    return count_rows(lazy.result(), what) if rows is None else rows


def costs_of_lazy(lazy: Lazy[Any]) -> Sequence[float] | None:
    """Wait for the calls that make a lazy value, and return the costs of its rows; see `costs_of`."""
    lazy.wait()
    node, made_by = Table(node_of(lazy)).resolved()
    return costs_of(lazy.result()) if count(node) is None else row_costs(node, [one for _, one in made_by.values()])
