"""The arguments of a task on the worker: slots become values, and lazy results are fetched by this rank's rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_remote.errors import DispatchError

if TYPE_CHECKING:
    from twinkle_remote.protocol.backend import Store
    from twinkle_remote.protocol.handed import HandedShare, HandedSlot, HandedValue, HandOver
    from twinkle_remote.protocol.messages import StoredSlot, Task


class TaskInputs:
    """The arguments of one task, and the number of bytes that were fetched for them.

    Args:
        task: The task.
        given: What it reads of the lazy arguments.
        store: Store of this worker.

    Attributes:
        fetched: Bytes that came from other processes.
        rows: Rows of split arguments that this rank received; None if nothing was split.
        total: Rows of split arguments of the whole call, before padding or dropping.
    """

    def __init__(self, task: Task, given: HandedShare | None, store: Store) -> None:
        self.fetched = 0
        self._task, self._given, self._store = task, given, store
        self.rows = task.rows if given is None or given.rows is None else given.rows
        self.total = task.total if given is None else given.total
        self._cache: dict[HandedSlot, Any] = {}

    def values(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of the method.

        Raises:
            DispatchError: Lazy arguments have different numbers of rows than other arguments, or are uneven and the
                function refuses that.
        """
        task = self._task
        args, kwargs = task.args, dict(task.kwargs)
        if task.slots:
            from twinkle_remote.call.arguments import decode  # no call without slots needs it

            args = tuple(decode(value, self._handed, self._stored) for value in task.args)
            kwargs = {key: decode(value, self._handed, self._stored) for key, value in task.kwargs.items()}
        if task.masks and self.rows is not None and self.total is not None and task.share is not None:
            from twinkle_remote.call.uneven import mask_of  # only a call that pads has a mask

            kwargs["valid"] = mask_of(self.total, task.share.count, task.share.index)
        return args, kwargs

    def _stored(self, slot: StoredSlot) -> Any:
        return self._get(slot.ref, slot.start, slot.stop)

    def _get(self, ref: object, start: int | None = None, stop: int | None = None) -> Any:
        value, size = self._store.get(ref, start, stop)
        self.fetched += size
        return value

    def _handed(self, slot: HandedSlot) -> Any:
        if slot not in self._cache:
            assert self._given is not None
            self._cache[slot] = self._value(self._task.handed[slot.index], self._given.values[slot.index])
        return self._cache[slot]

    def _value(self, hand_over: HandOver, given: HandedValue) -> Any:
        from twinkle_remote.call.collect import combine  # no call without lazy arguments needs it
        from twinkle_remote.values.join import join

        if given.refusal is not None:
            raise DispatchError(given.refusal)
        pieces = given.pieces if given.listing is None else self._store.get(given.listing)[0]
        values = [self._get(*piece) for piece in pieces]
        if not given.whole:
            return values if hand_over.how == "list" else join(values, results=len(pieces) > 1)
        value = combine(
            hand_over.how,
            values,
            name=f"{self._task.name}: lazy argument:",
            mesh=hand_over.mesh,
            weight=hand_over.weight,
            rows_given=given.rows_given,
            rows=given.rows,
            untold=hand_over.untold,
        )
        return self._cut(value) if given.cut else value

    def _cut(self, value: Any) -> Any:
        """This rank's rows of a value that was combined here."""
        from twinkle_remote.call.hand_over import rows_of_share  # as in `_value`
        from twinkle_remote.values.join import join
        from twinkle_remote.values.rows import rows_of, take

        task = self._task
        if task.share is None or (task.lists_only and not isinstance(value, list)):
            return value
        rows = rows_of(value, f"{task.name}: a lazy argument", fields=True)
        if rows is None:
            return value
        parts = rows_of_share(rows, task.share, self.total, task.uneven, task.name)
        self.total, self.rows = rows, sum(part.stop - part.start for part in parts)
        return join([take(value, part.start, part.stop) for part in parts] or [take(value, 0, 0)])
