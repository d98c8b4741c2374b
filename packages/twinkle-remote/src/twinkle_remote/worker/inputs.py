"""The arguments of a task on the worker: slots become values, and lazy results are fetched by this rank's rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_remote.protocol.messages import StoredSlot
from twinkle_remote.rows.cut import PLAIN
from twinkle_remote.rows.plain import map_parts
from twinkle_remote.tables.nodes import LazySlot

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_remote.protocol.backend import Store
    from twinkle_remote.protocol.messages import Task
    from twinkle_remote.tables.nodes import Columns, Rows
    from twinkle_remote.tables.transfers import TaskTransfer


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
            self._cache[slot.index] = self._value(slot)
        return self._cache[slot.index]

    def _value(self, slot: LazySlot) -> Any:
        from twinkle_remote.errors import DispatchError
        from twinkle_remote.tables.plan import count
        from twinkle_remote.tables.read import read  # no other call needs it

        assert self._given is not None
        node = self._given.values[slot.index]
        if isinstance(node, DispatchError):
            raise type(node)(str(node))  # each task's own
        value = read(node, self._fetch)
        return self._cut(value) if slot.split and count(node) is None else value

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
        index, count = task.share
        part = balanced_slice(rows, count, index)
        numbers = range(part.start, part.stop) if self.numbers is None else self.numbers
        self.total, self.rows = rows, len(numbers)
        return take(value, numbers)


UNSEEN_ROWS = PLAIN | {dict, list, tuple}


def decode(value: Any, lazy: Callable[[LazySlot], Any], stored: Callable[[StoredSlot], Any]) -> Any:
    """Replace slots with their values; runs on the worker.

    Args:
        value: An argument with slots.
        lazy: Returns the value of a lazy result.
        stored: Returns stored rows.
    """
    kind = type(value)
    if kind in PLAIN or (kind is list and UNSEEN_ROWS.issuperset(map(type, value))):
        return value
    if kind is LazySlot:
        return lazy(value)
    if kind is StoredSlot:
        return stored(value)
    skipped = UNSEEN_ROWS if kind is list else PLAIN
    # A function that named itself would be a cycle of references, which keeps the values until the collector comes.
    return map_parts(value, lambda part: part if type(part) in skipped else decode(part, lazy, stored))
