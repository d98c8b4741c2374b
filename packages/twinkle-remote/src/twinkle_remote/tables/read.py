"""Reads tables: the value of a resolved table, in the process that needs it, of the rows and columns that it names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_remote.call.collect import combine
from twinkle_remote.errors import CollectError, ColumnError, DispatchError
from twinkle_remote.rows.columns import column_names, joined, selected, taken
from twinkle_remote.rows.concat import concat
from twinkle_remote.rows.cut import take
from twinkle_remote.tables.nodes import Combined, Concat, Join, Select, StoredRows, Take

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from twinkle_remote.tables.nodes import Columns, Node, Rows

    Fetch = Callable[[object, Rows | None, Columns | None], Any]


def read(node: Node, fetch: Fetch) -> Any:
    """The value of a resolved table.

    Args:
        node: The table.
        fetch: Reads rows and columns of the stored value of a payload; None stands for all.

    Raises:
        DispatchError: Rows or columns do not join, or a column is not there.
        CollectError: What ranks returned does not fit the collect of their call.
    """
    return _TableReader(fetch).of(node, None)


class _TableReader:
    """The values of the nodes of one table, each read once."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._made: dict[tuple[int, Columns | None], Any] = {}

    def of(self, node: Node, names: Columns | None) -> Any:
        """The value of a node: of these columns those that are there, and perhaps more; None for all."""
        key = id(node), names
        if key not in self._made:
            self._made[key] = self._value(node, names)
        return self._made[key]

    def _value(self, node: Node, names: Columns | None) -> Any:
        if isinstance(node, StoredRows):
            return self._fetch(node.payload, node.rows, names)
        if isinstance(node, Combined):
            return combine(node, [self.of(one, None) for one in node.of])
        if isinstance(node, Take):
            return taken(self.of(node.of, names), node.rows)
        if isinstance(node, Select):
            return self._select(node, names)
        if isinstance(node, Join):
            return self._join([self.of(one, names) for one in node.of], names)
        assert isinstance(node, Concat), node
        values = [self.of(one, None if node.kinds or not node.ends else names) for one in node.of]
        try:
            path = "concat" if node.results is None else f"{node.results} result"
            whole = concat(values, path, results=node.results is not None and len(values) > 1)
        except CollectError as error:
            raise (DispatchError(str(error)) if node.results is None else error) from error
        return whole if node.order is None else take(whole, node.order)

    def _select(self, node: Select, names: Columns | None) -> Any:
        if names is not None:
            own = tuple([name for name in node.names if name in names])
            return selected(self.of(node.of, own), own) if own else self.of(node.of, own)
        try:
            return selected(self.of(node.of, node.names), node.names)
        except ColumnError:  # the error names all columns that are there
            return selected(self.of(node.of, None), node.names)

    def _join(self, values: list[Any], names: Columns | None) -> Any:
        """The columns of all values; those that have none of the names need not be read to their end."""
        if names is not None:
            wanted = set(names)
            values = [one for one in values if _has_any(one, wanted)] or values[:1]
        return joined(values) if len(values) > 1 or names is None else values[0]


def _has_any(value: Any, names: set[Hashable]) -> bool:
    known = column_names(value)
    return known is None or not names.isdisjoint(known)
