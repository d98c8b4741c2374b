"""Makes one lazy value of the pieces that a plan names, in the process that reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_remote.call.collect import combine, refuse_tuples
from twinkle_remote.errors import CollectError, DispatchError
from twinkle_remote.protocol.backend import AdjoiningStore, PickingStore
from twinkle_remote.protocol.handed import HandedPiece
from twinkle_remote.protocol.tables import Concatenated, Constant, Given, Joined, Mapped, Narrowed, Selected, nested
from twinkle_remote.values.columns import labelled
from twinkle_remote.values.join import join
from twinkle_remote.values.picking import concatenated, joined, pick, selected, taken, with_lists
from twinkle_remote.values.wanted_columns import in_columns, only_read, picked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_remote.protocol.backend import Store
    from twinkle_remote.protocol.handed import HandedValue, HandOver
    from twinkle_remote.protocol.tables import Node


def read_piece(store: Store, piece: HandedPiece, timeout: float | None = None) -> tuple[Any, int]:
    """A piece, and the bytes that were fetched for it.

    Args:
        store: The store of this process.
        piece: The piece.
        timeout: Seconds; None for no limit.
    """
    payload, start, stop, rows, columns = piece
    if rows is None and columns is None:
        return store.get(payload, start, stop, timeout)
    if rows is None and start is not None and stop is not None:
        rows = range(start, stop)
    if isinstance(store, PickingStore):
        return store.pick(payload, rows, columns, timeout)
    if not rows:
        value, size = store.get(payload, None if rows is None else 0, None if rows is None else 0, timeout)
        return picked(value, None, columns), size
    first, last = min(rows), max(rows)
    value, size = store.get(payload, first, last + 1, timeout)
    return picked(value, tuple([row - first for row in rows]), columns), size


def read_adjoined(store: Store, pieces: Sequence[HandedPiece]) -> tuple[Any, int] | None:
    """Several pieces as one value, and the bytes that were fetched; None where the store cannot do it."""
    if len(pieces) < 2 or not isinstance(store, AdjoiningStore):
        return None
    if any(piece.rows is not None or piece.columns is not None for piece in pieces):
        return None
    return store.adjoined([(piece.payload, piece.start, piece.stop) for piece in pieces])


class HandedReader:
    """Reads lazy values.

    Args:
        read: Reads a piece.
        name: What the value is, for messages.
        adjoined: Reads several pieces as one value, or returns None.
    """

    def __init__(
        self,
        read: Callable[[HandedPiece], Any],
        name: str,
        adjoined: Callable[[Sequence[HandedPiece]], Any] = lambda pieces: None,
    ) -> None:
        self._read, self._name, self._adjoined = read, name, adjoined

    def value(self, hand_over: HandOver, given: HandedValue) -> Any:
        """The value, or the rows of it that were planned.

        Raises:
            DispatchError: It cannot be taken, or its rows do not join.
            CollectError: The outcomes do not fit the collect of the call that made them.
        """
        if given.refusal is not None:
            kind, text = given.refusal
            raise kind(text)
        if hand_over.table is not None:
            return self._table(hand_over, given)
        if given.whole:
            return self._whole(hand_over, given)
        if hand_over.how == "list":
            return self._values(given)
        rows = self._rows(given)
        rows = rows if given.order is None else pick(rows, given.order)
        return with_lists(labelled(rows)) if given.scattered else rows

    def _table(self, hand_over: HandOver, given: HandedValue) -> Any:
        assert hand_over.table is not None
        if given.whole:
            parts = [self._whole(part, own) for part, own in zip(hand_over.parts, given.parts, strict=True)]
            return made(hand_over.table, parts)
        rows = self._planned(hand_over, given)
        return labelled(rows) if given.scattered else rows

    def _planned(self, hand_over: HandOver, given: HandedValue) -> Any:
        if given.layers:
            rows = joined([self._planned(hand_over, layer) for layer in given.layers])
            return in_columns(rows, given.columns)
        values = [self._rows(part) for part in given.parts or (given,)]
        if any(part.columns_unknown and part.stop - part.start > 1 for part in hand_over.parts):
            refuse_tuples(values, self._name)  # as the whole value would be
        rows = concatenated(values) if given.parts else values[0]
        if given.parts:
            rows = in_columns(rows, given.columns)
        return with_lists(rows if given.order is None else pick(rows, given.order))

    def _rows(self, given: HandedValue) -> Any:
        """The rows of one lazy result, or of one operand of a table."""
        rows = None if given.listing is not None or given.columns is not None else self._adjoined(given.pieces)
        if rows is not None:
            return rows
        values = self._values(given)
        try:
            rows = join(values, results=len(values) > 1)
        except CollectError as error:
            if given.columns is None:
                raise
            raise DispatchError(str(error)) from error
        return in_columns(rows, given.columns)

    def _whole(self, hand_over: HandOver, given: HandedValue) -> Any:
        values = self._values(given)
        return combine(
            hand_over, values, name=self._name, rows_given=given.rows_given, rows=given.rows, numbers=given.numbers
        )

    def _values(self, given: HandedValue) -> list[Any]:
        pieces: Sequence[HandedPiece] = given.pieces
        if given.listing is not None:
            pieces = self._read(HandedPiece(given.listing))
        return [self._read(piece) for piece in pieces]


def made(node: Node, parts: Sequence[Any]) -> Any:
    """The value of a plan, of whole parts.

    Args:
        node: The plan.
        parts: The value of each of its parts.
    """
    if isinstance(node, Given):
        return parts[node.part]
    if isinstance(node, Constant):
        return node.value
    if isinstance(node, Concatenated):
        return concatenated(nested(node, [made(part, parts) for part in node.of], concatenated))
    if isinstance(node, Joined):
        return joined([made(part, parts) for part in node.of])
    value = made(node.of, parts)
    if isinstance(node, Mapped):
        return node.function(value)
    if isinstance(node, Narrowed):
        return only_read(value, node.reads, keeps_rows=True)
    return selected(value, node.columns) if isinstance(node, Selected) else taken(value, node.rows)
