"""The arguments of a task on the worker: slots become values, and lazy results are fetched by this rank's rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_mesh import plan_transfer
from twinkle_remote.call.arguments import decode
from twinkle_remote.call.collect import combine
from twinkle_remote.call.uneven import rows_to_send
from twinkle_remote.errors import DispatchError
from twinkle_remote.values.join import join
from twinkle_remote.values.rows import rows_of, take

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.protocol.backend import Store
    from twinkle_remote.protocol.messages import HandedSlot, HandOver, Outcome, Share, StoredSlot, Task


class TaskInputs:
    """The arguments of one task, and the number of bytes that were fetched for them.

    Attributes:
        fetched: Bytes that came from other processes.
        rows: Rows of split arguments that this rank received; None if nothing was split.
        total: Rows of split arguments of the whole call, before padding or dropping.
    """

    def __init__(self, task: Task, outcomes: Sequence[Outcome], store: Store) -> None:
        self.fetched = 0
        self.rows = task.rows
        self._task, self._outcomes, self._store = task, outcomes, store
        self.total = task.total
        self._cache: dict[HandedSlot, Any] = {}

    def values(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of the method.

        Raises:
            DispatchError: Lazy arguments have different numbers of rows than other arguments, or are uneven and the
                function refuses that.
        """
        task = self._task
        if not task.slots:
            return task.args, dict(task.kwargs)
        args = tuple(decode(value, self._handed, self._stored) for value in task.args)
        return args, {key: decode(value, self._handed, self._stored) for key, value in task.kwargs.items()}

    def _stored(self, slot: StoredSlot) -> Any:
        return self._get(slot.ref, slot.start, slot.stop)

    def _get(self, ref: object, start: int | None = None, stop: int | None = None) -> Any:
        value, size = self._store.get(ref, start, stop)
        self.fetched += size
        return value

    def _handed(self, slot: HandedSlot) -> Any:
        if slot not in self._cache:
            hand_over = self._task.handed[slot.index]
            outcomes = self._outcomes[hand_over.start : hand_over.stop]
            if hand_over.once is not None and all(outcome.rows_given is None for outcome in outcomes):
                outcomes = [outcomes[i] for i in hand_over.once]
            share = self._task.share if slot.split else None
            value = self._whole(hand_over, outcomes) if share is None else self._share(hand_over, outcomes, share)
            self._cache[slot] = value
        return self._cache[slot]

    def _share(self, hand_over: HandOver, outcomes: Sequence[Outcome], share: Share) -> Any:
        lists_only = self._task.lists_only
        if hand_over.how == "list":
            pieces = self._pieces([1] * len(outcomes), share)
            return [self._get(outcomes[source].payload) for source, _, _ in pieces]
        if hand_over.how in ("rows", "one"):
            known = [outcome.rows for outcome in outcomes if outcome.rows is not None]
            if len(known) == len(outcomes) and (not lists_only or all(outcome.is_list for outcome in outcomes)):
                return self._rows(outcomes, _clipped(known, outcomes[0].total if hand_over.padded else None), share)
        value = self._whole(hand_over, outcomes)
        if lists_only and not isinstance(value, list):
            return value
        rows = rows_of(value, f"{self._task.name}: a lazy argument")
        if rows is None:
            return value
        parts = [take(value, start, stop) for _, start, stop in self._pieces([rows], share)]
        return join(parts) if parts else take(value, 0, 0)

    def _rows(self, outcomes: Sequence[Outcome], lengths: Sequence[int], share: Share) -> Any:
        pieces = self._pieces(lengths, share)
        if not pieces:
            return self._get(outcomes[0].payload, 0, 0)
        return join([self._get(outcomes[source].payload, start, stop) for source, start, stop in pieces])

    def _pieces(self, lengths: Sequence[int], share: Share) -> Sequence[tuple[int, int, int]]:
        total = sum(lengths)
        if self.total is not None and total != self.total:
            raise DispatchError(
                f"{self._task.name}: what one call splits must have one number of rows, but a lazy argument has "
                f"{total} and another argument {self.total}; mark what must go whole with Replicate(value)"
            )
        self.total = total
        wanted = rows_to_send(self._task.uneven, total, share.count, self._task.name)
        origins = [(source, 0, rows) for source, rows in enumerate(lengths)]
        used = _resized(origins, total, wanted)
        plan = plan_transfer(len(used), share.count, [stop - start for _, start, stop in used])[share.index]
        self.rows = sum(stop - start for _, start, stop in plan)
        return [(used[i][0], used[i][1] + start, used[i][1] + stop) for i, start, stop in plan]

    def _whole(self, hand_over: HandOver, outcomes: Sequence[Outcome]) -> Any:
        return combine(
            hand_over.how,
            [self._get(outcome.payload) for outcome in outcomes],
            name=f"{self._task.name}: lazy argument:",
            mesh=hand_over.mesh,
            weight=hand_over.weight,
            rows_given=[outcome.rows_given for outcome in outcomes],
            rows=outcomes[0].total if hand_over.padded else None,
        )


def _clipped(lengths: Sequence[int], total: int | None) -> Sequence[int]:
    """Lengths without the padding after the first `total` rows."""
    if total is None:
        return lengths
    out, left = [], total
    for rows in lengths:
        out.append(min(rows, left))
        left -= out[-1]
    return out


def _resized(origins: list[tuple[int, int, int]], total: int, wanted: int) -> list[tuple[int, int, int]]:
    """Origins cut to `wanted` rows, or repeated from the first row until there are `wanted` rows."""
    out: list[tuple[int, int, int]] = []
    left = wanted
    while left > 0 and total > 0:
        for source, start, stop in origins:
            rows = min(stop - start, left)
            out.append((source, start, start + rows))
            left -= rows
    return out or origins
