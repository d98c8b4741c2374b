"""Plans a hand-over: which pieces of which results each task of the next call reads; no value is needed for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_mesh import balanced_slice, plan_transfer
from twinkle_remote.call.uneven import rows_to_send
from twinkle_remote.errors import DispatchError
from twinkle_remote.protocol.handed import HandedPiece, HandedShare, HandedValue, HandOverPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_remote.protocol.handed import HandOver
    from twinkle_remote.protocol.messages import Outcome, Share, Task

_MANY = 32  # pieces: about from here on, one more object costs less than naming them in each task
_Rows = tuple[int, int, int]  # index of the source, first row, one past the last


def plan_hand_over(
    plan: HandOverPlan, outcomes: Sequence[Outcome], keep: Callable[[object], tuple[object, int]] | None = None
) -> Sequence[HandedShare]:
    """Return what each distinct task of a call reads, in time linear in outcomes, tasks and pieces.

    Args:
        plan: The call.
        outcomes: Outcomes of all inputs, without failures.
        keep: Keeps a value for readers in other processes, as `Store.keep` does: many pieces that every task reads are
            sent once. None if the tasks are read in this process.
    """
    planner = _Planner(plan, outcomes)
    slots = [planner.slot(given) for given in plan.handed]
    if keep is not None and len(plan.of_share) > 1:
        slots = [[_listed(slot[0], keep)] if len(slot) == 1 else slot for slot in slots]
    shares = []
    for index, used in enumerate(plan.of_share):
        values = tuple([slots[slot][index if len(slots[slot]) > 1 else 0] for slot in used])
        shares.append(HandedShare(values, planner.total, planner.rows[index] if planner.rows else None))
    return shares


def plan_for_task(task: Task, outcomes: Sequence[Outcome]) -> HandedShare:
    """Return what one task reads, where only its worker has the outcomes."""
    count = 1 if task.share is None else task.share.count
    used = (tuple(range(len(task.handed))),) * count
    plan = HandOverPlan(
        task.name,
        task.handed,
        used,
        None if task.share is None else count,
        task.total,
        task.uneven,
        task.lists_only,
    )
    return plan_hand_over(plan, outcomes)[0 if task.share is None else task.share.index]


def rows_of_share(rows: int, share: Share, total: int | None, uneven: str | None, name: str) -> Sequence[slice]:
    """The rows of one value that a share takes; rows that pad it start again from the first.

    Args:
        rows: Rows of the value.
        share: The share.
        total: Rows of the other split arguments; None without any.
        uneven: The function's `uneven` option.
        name: Class.method, for messages.

    Raises:
        DispatchError: The other arguments have another number of rows, or the function does not take this number.
    """
    _check_total(rows, total, name)
    part = balanced_slice(rows_to_send(uneven, rows, share.count, name), share.count, share.index)
    out = []
    position: int = part.start
    while position < part.stop:
        start = position % rows
        stop = min(rows, start + part.stop - position)
        out.append(slice(start, stop))
        position += stop - start
    return out


class _Planner:
    """Plans one lazy argument after the other; all that are split have one number of rows.

    Attributes:
        total: That number; None before it is known.
        rows: Rows of each share; empty before they are known.
    """

    def __init__(self, plan: HandOverPlan, outcomes: Sequence[Outcome]) -> None:
        self._plan = plan
        self._outcomes = outcomes
        self.total = plan.total
        self.rows: Sequence[int] = ()

    def slot(self, given: HandOver) -> Sequence[HandedValue]:
        """The pieces of one lazy argument for each share; a single value if they are the same for all shares."""
        sources = self._outcomes[given.start : given.stop]
        if given.once is not None and all(outcome.rows_given is None for outcome in sources):
            sources = [sources[index] for index in given.once]
        if not given.split or self._plan.count is None:
            return [_whole(given, sources)]
        try:
            return self._shares(given, sources)
        except DispatchError as error:
            return [HandedValue(refusal=str(error))]

    def _shares(self, given: HandOver, sources: Sequence[Outcome]) -> Sequence[HandedValue]:
        lists_only = self._plan.lists_only
        if given.how == "list":
            parts = self._divide([(index, 0, 1) for index in range(len(sources))])
            return [HandedValue(tuple([HandedPiece(sources[index].payload) for index, _, _ in part])) for part in parts]
        known = given.how in ("rows", "one") and all(outcome.rows is not None for outcome in sources)
        known = known and sum([outcome.numbered and bool(outcome.rows) for outcome in sources]) < 2
        if (
            not known
            or not _is_aligned(given, sources)
            or (lists_only and not all(outcome.is_list for outcome in sources))
        ):
            return [_whole(given, sources)._replace(cut=True)]
        none = (HandedPiece(sources[0].payload, 0, 0),)
        return [
            HandedValue(tuple([HandedPiece(sources[i].payload, start, stop) for i, start, stop in part]) or none)
            for part in self._divide(_origins(given, sources))
        ]

    def _divide(self, origins: Sequence[_Rows]) -> Sequence[Sequence[_Rows]]:
        plan = self._plan
        assert plan.count is not None
        total = sum([stop - start for _, start, stop in origins])
        _check_total(total, self.total, plan.name)
        self.total = total
        used = _resized(origins, total, rows_to_send(plan.uneven, total, plan.count, plan.name))
        transfer = plan_transfer(len(used), plan.count, [stop - start for _, start, stop in used])
        self.rows = [sum([stop - start for _, start, stop in part]) for part in transfer]
        return [[(used[i][0], used[i][1] + start, used[i][1] + stop) for i, start, stop in part] for part in transfer]


def _check_total(total: int, known: int | None, name: str) -> None:
    if known is not None and total != known:
        raise DispatchError(
            f"{name}: what one call splits must have one number of rows, but a lazy argument has "
            f"{total} and another argument {known}; mark what must go whole with Replicate(value)"
        )


def _whole(given: HandOver, sources: Sequence[Outcome]) -> HandedValue:
    weighs = given.how == "mean" and not given.padded
    windows: Sequence[tuple[int | None, int | None]] = given.windows or [(None, None)] * len(sources)
    return HandedValue(
        tuple([HandedPiece(outcome.payload, *window) for outcome, window in zip(sources, windows, strict=True)]),
        whole=True,
        rows_given=tuple([outcome.weighing if weighs else outcome.rows_given for outcome in sources]),
        rows=sources[0].total if given.padded else None,
    )


def _listed(value: HandedValue, keep: Callable[[object], tuple[object, int]]) -> HandedValue:
    """The value with its pieces kept once for all tasks, if they are many."""
    if len(value.pieces) < _MANY:
        return value
    return value._replace(pieces=(), listing=keep(value.pieces)[0])


def _is_aligned(given: HandOver, sources: Sequence[Outcome]) -> bool:
    """Whether it is known which rows count: where some were repeated, each source made a row for each."""
    if not given.padded or given.windows is not None or sources[0].total is None:
        return True
    return _given(sources) <= sources[0].total or all(outcome.rows_given in (None, outcome.rows) for outcome in sources)


def _given(sources: Sequence[Outcome]) -> int:
    """Rows that the sources were given; for one that does not tell, those that it made."""
    return sum([(outcome.rows if outcome.rows_given is None else outcome.rows_given) or 0 for outcome in sources])


def _origins(given: HandOver, sources: Sequence[Outcome]) -> Sequence[_Rows]:
    """The rows of each source that count: those of its window, or all but the padding."""
    if given.windows is not None:
        return [(index, start, stop) for index, (start, stop) in enumerate(given.windows)]
    total = sources[0].total if given.padded else None
    left = total if total is not None and _given(sources) > total else None
    out = []
    for index, outcome in enumerate(sources):
        rows = outcome.rows or 0
        if left is not None:
            rows = min(rows, left)
            left -= rows
        out.append((index, 0, rows))
    return out


def _resized(origins: Sequence[_Rows], total: int, wanted: int) -> Sequence[_Rows]:
    """Origins cut to `wanted` rows, or repeated from the first row until there are `wanted` rows."""
    if wanted == total:
        return origins
    out: list[_Rows] = []
    left = wanted
    while left > 0 and total > 0:
        for source, start, stop in origins:
            rows = min(stop - start, left)
            out.append((source, start, start + rows))
            left -= rows
    return out or origins
