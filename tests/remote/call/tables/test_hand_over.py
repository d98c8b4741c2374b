"""The plan of a hand-over: made once for all tasks of a call, it gives each task what it would plan for itself."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinkle_mesh import plan_transfer
from twinkle_remote import DispatchError
from twinkle_remote.backends.memory import Memory
from twinkle_remote.call.collect import combine
from twinkle_remote.call.tables.hand_over import plan_hand_over, rows_of_share
from twinkle_remote.call.uneven import rows_to_send
from twinkle_remote.protocol import HandedSlot, HandOver, HandOverPlan, Outcome, Share, Task
from twinkle_remote.values.join import join
from twinkle_remote.values.rows import rows_of, take
from twinkle_remote.worker.inputs import TaskInputs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_mesh import DeviceMesh


class Alone:
    """What one task reads, by the rules as each task would apply them for itself to all outcomes: the oracle."""

    def __init__(self, task: Task, outcomes: Sequence[Outcome]) -> None:
        self.task, self.outcomes = task, outcomes
        self.rows, self.total = task.rows, task.total

    def value(self, given: HandOver) -> Any:
        outcomes = self.outcomes[given.start : given.stop]
        if given.once is not None and all(outcome.rows_given is None for outcome in outcomes):
            outcomes = [outcomes[i] for i in given.once]
        share = self.task.share if given.split else None
        return self.whole(given, outcomes) if share is None else self.share(given, outcomes, share)

    def share(self, given: HandOver, outcomes: Sequence[Outcome], share: Share) -> Any:
        if given.how == "list":
            return [outcomes[source].payload for source, _, _ in self.pieces([1] * len(outcomes), share)]
        if given.how in ("rows", "one"):
            known = [outcome.rows for outcome in outcomes if outcome.rows is not None]
            if len(known) == len(outcomes) and (not self.task.lists_only or all(one.is_list for one in outcomes)):
                return self.divided(outcomes, clipped(known, outcomes[0].total if given.padded else None), share)
        value = self.whole(given, outcomes)
        if self.task.lists_only and not isinstance(value, list):
            return value
        rows = rows_of(value, f"{self.task.name}: a lazy argument")
        if rows is None:
            return value
        parts = [take(value, start, stop) for _, start, stop in self.pieces([rows], share)]
        return join(parts) if parts else take(value, 0, 0)

    def divided(self, outcomes: Sequence[Outcome], lengths: Sequence[int], share: Share) -> Any:
        pieces = self.pieces(lengths, share)
        if not pieces:
            return take(outcomes[0].payload, 0, 0)
        return join([take(outcomes[source].payload, start, stop) for source, start, stop in pieces])

    def pieces(self, lengths: Sequence[int], share: Share) -> Sequence[tuple[int, int, int]]:
        total = sum(lengths)
        if self.total is not None and total != self.total:
            raise DispatchError("another number of rows")
        self.total = total
        wanted = rows_to_send(self.task.uneven, total, share.count, self.task.name)
        used: list[tuple[int, int, int]] = []
        left = wanted
        while left > 0 and total > 0:
            for source, rows in enumerate(lengths):
                used.append((source, 0, min(rows, left)))
                left -= used[-1][2]
        used = used or [(source, 0, rows) for source, rows in enumerate(lengths)]
        plan = plan_transfer(len(used), share.count, [stop for _, _, stop in used])[share.index]
        self.rows = sum(stop - start for _, start, stop in plan)
        return [(used[i][0], start, stop) for i, start, stop in plan]

    def whole(self, given: HandOver, outcomes: Sequence[Outcome]) -> Any:
        return combine(
            given,
            [outcome.payload for outcome in outcomes],
            name="lazy argument",
            rows_given=[outcome.rows_given for outcome in outcomes],
            rows=outcomes[0].total if given.padded else None,
        )


def clipped(lengths: Sequence[int], total: int | None) -> Sequence[int]:
    out, left = [], sum(lengths) if total is None else total
    for rows in lengths:
        out.append(min(rows, left))
        left -= out[-1]
    return out


def first_and_last(results: list[Any], mesh: DeviceMesh | None) -> Any:
    """A callable collect."""
    return [results[0], results[-1]]


class Drawn(NamedTuple):
    """A lazy argument with the outcomes of its producer, and the same as the oracle takes it, cut to its windows."""

    handed: HandOver
    outcomes: list[Outcome]
    plain: HandOver
    cut: list[Outcome]


@st.composite
def arguments(draw: st.DrawFn, start: int) -> Drawn:
    """A lazy argument of any collect; `start` is the index of its first input."""
    how: Any = draw(st.sampled_from(["rows", "rows", "rows", "list", "one", "mean", "sum", first_and_last]))
    lengths = draw(st.lists(st.integers(0, 5), min_size=1, max_size=1 if how == "one" else 5))
    kind = draw(st.sampled_from([list, tuple]))
    parts: list[Any] = [kind(range(10 * i, 10 * i + rows)) for i, rows in enumerate(lengths)]
    if how in ("mean", "sum"):
        parts = [float(i) for i, _ in enumerate(lengths)]
    padded = how == "rows" and draw(st.booleans())
    real = draw(st.integers(0, sum(lengths))) if padded else None
    counted = draw(st.booleans())
    outcomes = [
        Outcome(
            rank,
            part,
            rows=len(part) if isinstance(part, list | tuple) else None,
            is_list=isinstance(part, list),
            rows_given=lengths[rank] if counted else None,
            total=real,
        )
        for rank, part in enumerate(parts)
    ]
    once = tuple(range(0, len(parts), 2)) if how == "list" and draw(st.booleans()) else None
    plain = HandOver(start, start + len(parts), how, padded=padded, once=once, split=draw(st.booleans()))
    if how != "rows" or padded or draw(st.booleans()):
        return Drawn(plain, outcomes, plain, outcomes)
    bounds = [sorted((draw(st.integers(0, rows)), draw(st.integers(0, rows)))) for rows in lengths]
    windows = tuple((low, high) for low, high in bounds)
    cut = [
        replace(outcome, payload=outcome.payload[low:high], rows=high - low)  # type: ignore[index]  # it is a sequence
        for outcome, (low, high) in zip(outcomes, windows, strict=True)
    ]
    return Drawn(plain._replace(windows=windows), outcomes, plain, cut)


def outcome_of(read: Callable[[], Any]) -> Any:
    """A value, or that it is refused."""
    try:
        return read()
    except DispatchError:
        return DispatchError


@given(data=st.data())
def test_one_plan_gives_each_task_what_it_would_plan_for_itself(data: st.DataObject) -> None:
    count = data.draw(st.one_of(st.none(), st.integers(1, 6)))
    drawn: list[Drawn] = []
    for _ in range(data.draw(st.integers(1, 3))):
        drawn.append(data.draw(arguments(sum(len(one.outcomes) for one in drawn))))
    handed = tuple(one.handed for one in drawn)
    outcomes = [outcome for one in drawn for outcome in one.outcomes]
    options: Any = {
        "total": data.draw(st.one_of(st.none(), st.integers(0, 6))),
        "uneven": data.draw(st.sampled_from([None, None, "pad", "drop", "strict"])),
        "lists_only": data.draw(st.booleans()),
    }
    slots = tuple(range(len(handed)))
    plan = HandOverPlan("Sink.take", handed, (slots,) * (count or 1), count, **options)
    shares = plan_hand_over(plan, outcomes)
    assert plan_hand_over(pickle.loads(pickle.dumps(plan.without_collects())), outcomes) == shares
    for index, share in enumerate(shares):
        task = Task(
            "method",
            "i",
            "Sink.take",
            "take",
            tuple(HandedSlot(slot, handed[slot].split) for slot in slots),
            slots=True,
            share=None if count is None else Share(index, count),
            handed=handed,
            **options,
        )
        alone = Alone(task, [outcome for one in drawn for outcome in one.cut])
        wanted = [outcome_of(partial(alone.value, one.plain)) for one in drawn]
        mine = TaskInputs(task, share, Memory())
        if DispatchError in wanted:
            assert outcome_of(mine.values) is DispatchError
        else:
            assert list(mine.values()[0]) == wanted
            assert (mine.rows, mine.total) == (alone.rows, alone.total)


@given(rows=st.integers(0, 20), count=st.integers(1, 8), uneven=st.sampled_from([None, "pad", "drop"]))
def test_rows_cut_on_a_worker_are_those_of_the_plan(rows: int, count: int, uneven: Any) -> None:
    if uneven and (not rows or (uneven == "drop" and rows < count)):
        return
    value = list(range(rows))
    plan = HandOverPlan("Sink.take", (HandOver(0, 1, "rows", split=True),), ((0,),) * count, count, uneven=uneven)
    for index, share in enumerate(plan_hand_over(plan, [Outcome(0, value, rows=rows, is_list=True)])):
        mine = [value[part] for part in rows_of_share(rows, Share(index, count), None, uneven, "Sink.take")]
        planned = [value[piece.start : piece.stop] for piece in share.values[0].pieces]
        assert join(mine or [[]]) == join(planned)


@pytest.mark.parametrize("sources", [8, 1024])
def test_a_task_names_only_the_pieces_that_it_reads(sources: int) -> None:
    handed = tuple(HandOver(i * sources, (i + 1) * sources, "rows", split=True) for i in range(8))
    plan = HandOverPlan("Sink.take", handed, (tuple(range(8)),) * 8, 8)
    shares = plan_hand_over(plan, [Outcome(i, [0], rows=1, is_list=True) for i in range(8 * sources)])
    named = [sum(len(value.pieces) for value in share.values) for share in shares]
    assert named == [sources] * 8  # each of 8 shares reads an eighth of each of 8 results


def test_each_task_has_only_its_own_lazy_results() -> None:
    handed = tuple(HandOver(i, i + 1, "one") for i in range(4))
    plan = HandOverPlan("Sink.take", handed, ((0, 1), (2,), (3, 0)))
    shares = plan_hand_over(plan, [Outcome(i, f"value {i}") for i in range(4)])
    read = [[value.pieces[0].payload for value in share.values] for share in shares]
    assert read == [["value 0", "value 1"], ["value 2"], ["value 3", "value 0"]]


def test_many_pieces_that_every_task_reads_are_kept_once() -> None:
    kept: list[object] = []

    def keep(value: object) -> tuple[object, int]:
        kept.append(value)
        return value, 0

    outcomes = [Outcome(i, float(i), rows_given=1) for i in range(64)]
    handed = (HandOver(0, 64, "mean", split=True),)
    plan = HandOverPlan("Sink.take", handed, ((0,),) * 8, 8)
    shares = plan_hand_over(plan, outcomes, keep)
    assert len(kept) == 1 and all(share.values[0].pieces == () for share in shares)
    task = Task("method", "i", "Sink.take", "take", (HandedSlot(0, split=True),), slots=True, handed=handed)
    assert TaskInputs(task, shares[3], Memory()).values()[0] == (31.5,)
    few = plan_hand_over(HandOverPlan("Sink.take", (HandOver(0, 8, "mean"),), ((0,),) * 8, 8), outcomes, keep)
    assert len(kept) == 1 and len(few[0].values[0].pieces) == 8
