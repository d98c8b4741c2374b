"""The arguments of a task on the worker: slots become values, and lazy results are fetched by this rank's rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twinkle_remote.protocol.backend import Store
    from twinkle_remote.protocol.messages import StoredSlot, Task
    from twinkle_remote.tables.nodes import Columns, LazySlot, Rows
    from twinkle_remote.tables.transfers import Reading, TaskTransfer


class TaskInputs:
    """The arguments of one task, and the number of bytes that were fetched for them.

    Args:
        task: The task.
        given: What it reads of the lazy arguments.
        store: Store of this worker.

    Attributes:
        fetched: Bytes that came from other processes.
        rows: Rows of split arguments that this rank received; None if nothing was split.
        total: Rows of split arguments of the whole call.
        numbers: The numbers of this rank's rows, if they are divided by their costs; None otherwise.
    """

    def __init__(self, task: Task, given: TaskTransfer | None, store: Store) -> None:
        self.fetched = 0
        self._task, self._given, self._store = task, given, store
        self.rows = task.rows if given is None or given.rows is None else given.rows
        self.total = task.total if given is None else given.total
        self.numbers = task.numbers if given is None or given.numbers is None else given.numbers
        self._cache: dict[int, Any] = {}

    def values(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of the method; it waits for the processes that hold lazy ones.

        Raises:
            DispatchError: Lazy arguments have different numbers of rows than other arguments.
        """
        task = self._task
        args, kwargs = task.args, dict(task.kwargs)
        if task.slots:
            from twinkle_remote.call.arguments import decode  # no call without slots needs it

            args = tuple(decode(value, self._lazy, self._stored) for value in task.args)
            kwargs = {key: decode(value, self._lazy, self._stored) for key, value in task.kwargs.items()}
        return args, kwargs

    def _stored(self, slot: StoredSlot) -> Any:
        return self._fetch(slot.ref, slot.rows)

    def _fetch(self, payload: object, rows: Rows | None = None, names: Columns | None = None) -> Any:
        """A piece of a stored value, whose bytes are counted."""
        value, size = self._store.get(payload, rows, names)
        self.fetched += size
        return value

    def _lazy(self, slot: LazySlot) -> Any:
        if slot.index not in self._cache:
            assert self._given is not None
            self._cache[slot.index] = self._value(self._given.values[slot.index])
        return self._cache[slot.index]

    def _value(self, reading: Reading) -> Any:
        from twinkle_remote.tables.read import read  # no other call needs it

        if reading.refusal is not None:
            kind, text = reading.refusal
            raise kind(text)
        assert reading.node is not None
        value = read(reading.node, self._fetch)
        return self._cut(value) if reading.cut else value

    def _cut(self, value: Any) -> Any:
        """This rank's rows of a value whose rows are counted here."""
        from twinkle_mesh import balanced_slice
        from twinkle_remote.rows.cut import rows_of, take
        from twinkle_remote.tables.transfers import check_total  # as in `_value`

        task, given = self._task, self._given
        assert given is not None
        if task.share is None or (given.lists_only and not isinstance(value, list)):
            return value
        rows = rows_of(value, f"{task.name}: a lazy argument")
        if rows is None:
            return value
        check_total(rows, self.total, task.name)
        part = balanced_slice(rows, task.share.count, task.share.index)
        numbers = range(part.start, part.stop) if self.numbers is None else self.numbers
        self.total, self.rows = rows, len(numbers)
        return take(value, numbers)
