"""The arguments of a task on the worker: slots become values, and lazy results are fetched by this rank's rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.protocol.backend import Store
    from twinkle_remote.protocol.handed import HandedPiece, HandedShare, HandedSlot, HandedValue, HandOver
    from twinkle_remote.protocol.messages import StoredSlot, Task
    from twinkle_remote.protocol.tables import Rows


class TaskInputs:
    """The arguments of one task, and the number of bytes that were fetched for them.

    Args:
        task: The task.
        given: What it reads of the lazy arguments.
        store: Store of this worker.

    Attributes:
        fetched: Bytes that came from other processes.
        fetched_columns: Those of each column; None without any.
        rows: Rows of split arguments that this rank received; None if nothing was split.
        total: Rows of split arguments of the whole call, before padding or dropping.
        numbers: The numbers of this rank's rows, if they are divided by their costs; None otherwise.
    """

    def __init__(self, task: Task, given: HandedShare | None, store: Store) -> None:
        self.fetched = 0
        self.fetched_columns: dict[str, int] | None = None
        self._task, self._given, self._store = task, given, store
        self.rows = task.rows if given is None or given.rows is None else given.rows
        self.total = task.total if given is None else given.total
        self.numbers = task.numbers if given is None or given.numbers is None else given.numbers
        self._cache: dict[HandedSlot, Any] = {}

    def values(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of the method.

        Raises:
            DispatchError: Lazy arguments have different numbers of rows than other arguments, or are uneven and the
                function refuses that.
        """
        task = self._task
        args, kwargs = task.args, dict(task.kwargs)
        if task.unchecked:
            from twinkle_remote.call.arguments import refuse_circles  # few calls are sent so

            refuse_circles(task.name, (*args, *kwargs.values()))
        if task.slots:
            from twinkle_remote.call.arguments import decode  # no call without slots needs it

            args = tuple(decode(value, self._handed, self._stored) for value in task.args)
            kwargs = {key: decode(value, self._handed, self._stored) for key, value in task.kwargs.items()}
        if task.masks and self.rows is not None and self.total is not None and task.share is not None:
            from twinkle_remote.call.uneven import mask_of  # only a call that pads has a mask

            kwargs["valid"] = mask_of(self.total, task.share.count, task.share.index)
        return args, kwargs

    def _stored(self, slot: StoredSlot) -> Any:
        if slot.rows is not None:
            from twinkle_remote.protocol.handed import HandedPiece  # few calls divide by costs

            return self._read(HandedPiece(slot.ref, rows=slot.rows))
        return self._counted(*self._store.get(slot.ref, slot.start, slot.stop))

    def _read(self, piece: HandedPiece) -> Any:
        from twinkle_remote.call.tables.handed_value import read_piece  # no other call needs it

        return self._counted(*read_piece(self._store, piece))

    def _read_adjoined(self, pieces: Sequence[HandedPiece]) -> Any:
        from twinkle_remote.call.tables.handed_value import read_adjoined  # as in `_read`

        found = read_adjoined(self._store, pieces)
        return None if found is None else self._counted(*found)

    def _counted(self, value: Any, size: int) -> Any:
        """A value whose bytes are counted."""
        if size:
            from twinkle_remote.values.column_bytes import count_columns  # as in `_read`

            self.fetched += size
            self.fetched_columns = count_columns(self.fetched_columns, value, size)
        return value

    def _handed(self, slot: HandedSlot) -> Any:
        if slot not in self._cache:
            assert self._given is not None
            self._cache[slot] = self._value(self._task.handed[slot.index], self._given.values[slot.index])
        return self._cache[slot]

    def _value(self, hand_over: HandOver, given: HandedValue) -> Any:
        from twinkle_remote.call.tables.handed_value import HandedReader  # as in `_read`

        reader = HandedReader(self._read, f"{self._task.name}: lazy argument:", self._read_adjoined)
        value = reader.value(hand_over, given)
        return self._cut(value) if given.cut else value

    def _cut(self, value: Any) -> Any:
        """This rank's rows of a value that was combined here."""
        from twinkle_remote.call.tables.hand_over import check_total, rows_of_share  # as in `_read`
        from twinkle_remote.values.join import join
        from twinkle_remote.values.picking import pick
        from twinkle_remote.values.rows import rows_of, take

        task = self._task
        if task.share is None or (task.lists_only and not isinstance(value, list)):
            return value
        rows = rows_of(value, f"{task.name}: a lazy argument", fields=True)
        if rows is None:
            return value
        if task.balance is not False:
            check_total(rows, self.total, task.name)
            self.numbers = self._assigned(value, rows) if self.numbers is None else self.numbers
            self.total, self.rows = rows, len(self.numbers)
            return pick(value, self.numbers)
        parts = rows_of_share(rows, task.share, self.total, task.uneven, task.name)
        self.total, self.rows = rows, sum(part.stop - part.start for part in parts)
        return join([take(value, part.start, part.stop) for part in parts] or [take(value, 0, 0)])

    def _assigned(self, value: Any, total: int) -> Rows:
        """This rank's rows of a value by their costs, which every rank finds alike."""
        from twinkle_remote.call.even_work import assigned
        from twinkle_remote.values.costs import costs_of

        task = self._task
        assert task.share is not None
        return assigned(task.balance, costs_of(value), total, task.share.count, task.name)[task.share.index]
