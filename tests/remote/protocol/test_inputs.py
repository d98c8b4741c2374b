"""The inputs of a call: waited for once and planned once, and the first failure ends all of its tasks."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from twinkle_remote.errors import DispatchError
from twinkle_remote.protocol import Failure, InputReplies, Outcome, Reply, Task, TransferPlan
from twinkle_remote.tables.nodes import Combined, Input, LazyArgument, StoredRows, leaves

COUNT = 6


def plan(inputs: int) -> TransferPlan:
    node = Combined(tuple([StoredRows(Input(index)) for index in range(inputs)]), "rows")
    return TransferPlan("Sink.take", (LazyArgument(node, split=True),), ((0,),) * COUNT, COUNT)


def task(place: int) -> Task:
    return Task("method", "i", "Sink.take", "take", place=place)


def rows(rank: int) -> Outcome:
    return Outcome(rank, [rank, rank], rows=2, is_list=True)


def failed(rank: int) -> Outcome:
    return Outcome(rank, failure=Failure("a", "here", "KeyError", f"rank {rank}"))


@given(order=st.permutations(range(2 * COUNT)), early=st.integers(0, 2 * COUNT))
def test_every_task_is_given_its_own_pieces_when_all_inputs_are_there(order: list[int], early: int) -> None:
    replies = [Reply(rank) for rank in range(2 * COUNT)]
    for rank in order[:early]:
        replies[rank].answer(rows(rank))
    inputs = InputReplies(replies, [], plan(len(replies)))
    with ThreadPoolExecutor(COUNT) as threads:
        waiting = [threads.submit(inputs.of_task, task(place)) for place in range(COUNT)]
        for rank in order[early:]:
            assert not any(one.done() for one in waiting)
            replies[rank].answer(rows(rank))
        found = [one.result(60.0) for one in waiting]
    for place, (failure, share) in enumerate(found):
        assert failure is None and share is not None
        node = share.values[0]
        assert not isinstance(node, DispatchError)
        pieces = [(stored.payload, stored.rows) for stored in leaves(node)]
        assert pieces == [([rank, rank], range(2)) for rank in (2 * place, 2 * place + 1)]


@given(order=st.permutations(range(COUNT)), bad=st.integers(0, COUNT - 1), watched=st.booleans())
def test_the_first_failure_ends_all_tasks_at_once(order: list[int], bad: int, watched: bool) -> None:
    replies = [Reply(rank) for rank in range(COUNT + 1)]
    read, rest = (replies[:-1], replies[-1:]) if watched else (replies, [])
    inputs = InputReplies(read, rest, plan(len(read)))
    for rank in order[:bad]:
        replies[rank].answer(rows(rank))
    replies[-1].answer(failed(COUNT))
    for rank in order[bad:]:  # later failures do not count
        replies[rank].answer(failed(rank))
    for place in range(COUNT):
        failure, share = inputs.of_task(task(place))
        assert share is None and failure is not None and failure.message == f"rank {COUNT}" and failure.upstream


def test_a_watched_reply_is_not_waited_for() -> None:
    read, rest = Reply(0), Reply(1)
    inputs = InputReplies([read], [rest], plan(1))
    read.answer(rows(0))
    rest.answer(failed(1))
    assert inputs.of_task(task(0))[1] is not None


def test_who_asks_to_be_told_is_told_once_with_the_last_input() -> None:
    replies, told = [Reply(rank) for rank in range(COUNT)], []
    inputs = InputReplies(replies, [], plan(COUNT))
    inputs.when_ready(lambda: told.append("first"))
    for reply in replies:
        assert not told
        reply.answer(rows(reply.rank))
    inputs.when_ready(lambda: told.append("late"))
    assert told == ["first", "late"] and InputReplies().of_task(task(0)) == (None, None)


def test_a_reply_that_is_done_holds_no_call_that_waited_for_it() -> None:
    first, second = Reply(0), Reply(1)
    inputs = InputReplies([first, second], [], plan(2))
    seen = weakref.ref(inputs)
    first.answer(rows(0))
    second.answer(rows(1))
    assert inputs.of_task(task(0))[1] is not None
    del inputs
    gc.collect()
    assert seen() is None and first.done()
