"""The inputs of a call on threads: waited for once and planned once, and the first failure ends all of its tasks."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from twinkle_remote.backends.shared_inputs import SharedInputs
from twinkle_remote.backends.thread_reply import ThreadReply
from twinkle_remote.protocol import Failure, HandOver, HandOverPlan, Outcome, Task

COUNT = 6


def plan(inputs: int) -> HandOverPlan:
    handed = (HandOver(0, inputs, "rows", split=True),)
    return HandOverPlan("Sink.take", handed, ((0,),) * COUNT, COUNT)


def task(place: int) -> Task:
    return Task("method", "i", "Sink.take", "take", place=place)


def rows(rank: int) -> Outcome:
    return Outcome(rank, [rank, rank], rows=2, is_list=True)


def failed(rank: int) -> Outcome:
    return Outcome(rank, failure=Failure("a", "here", "KeyError", f"rank {rank}"))


@given(order=st.permutations(range(2 * COUNT)), early=st.integers(0, 2 * COUNT))
def test_every_task_is_given_its_own_pieces_when_all_inputs_are_there(order: list[int], early: int) -> None:
    replies = [ThreadReply(rank) for rank in range(2 * COUNT)]
    for rank in order[:early]:
        replies[rank].complete(rows(rank))
    inputs = SharedInputs(replies, [], plan(len(replies)))
    with ThreadPoolExecutor(COUNT) as threads:
        waiting = [threads.submit(inputs.of_task, task(place)) for place in range(COUNT)]
        for rank in order[early:]:
            assert not any(one.done() for one in waiting)
            replies[rank].complete(rows(rank))
        found = [one.result(60.0) for one in waiting]
    for place, (outcomes, share) in enumerate(found):
        assert not outcomes and share is not None
        pieces = [(piece.payload, piece.start, piece.stop) for piece in share.values[0].pieces]
        assert pieces == [([rank, rank], 0, 2) for rank in (2 * place, 2 * place + 1)]


@given(order=st.permutations(range(COUNT)), bad=st.integers(0, COUNT - 1), watched=st.booleans())
def test_the_first_failure_ends_all_tasks_at_once(order: list[int], bad: int, watched: bool) -> None:
    replies = [ThreadReply(rank) for rank in range(COUNT + 1)]
    read, rest = (replies[:-1], replies[-1:]) if watched else (replies, [])
    inputs = SharedInputs(read, rest, plan(len(read)))
    for rank in order[:bad]:
        replies[rank].complete(rows(rank))
    replies[-1].complete(failed(COUNT))
    for rank in order[bad:]:  # later failures do not count
        replies[rank].complete(failed(rank))
    for place in range(COUNT):
        outcomes, share = inputs.of_task(task(place))
        assert share is None and [one.failure.message for one in outcomes if one.failure] == [f"rank {COUNT}"]


def test_a_watched_reply_is_not_waited_for() -> None:
    read, rest = ThreadReply(0), ThreadReply(1)
    inputs = SharedInputs([read], [rest], plan(1))
    read.complete(rows(0))
    rest.complete(failed(1))
    assert inputs.of_task(task(0))[1] is not None


def test_without_a_plan_each_worker_is_given_all_outcomes() -> None:
    reply = ThreadReply(0)
    reply.complete(rows(0))
    assert SharedInputs([reply], [], None).of_task(task(0)) == ([rows(0)], None)


def test_a_reply_that_is_done_holds_no_call_that_waited_for_it() -> None:
    first, second = ThreadReply(0), ThreadReply(1)
    inputs = SharedInputs([first, second], [], plan(2))
    seen = weakref.ref(inputs)
    first.complete(rows(0))
    second.complete(rows(1))
    assert inputs.of_task(task(0))[1] is not None
    del inputs
    gc.collect()
    assert seen() is None and first.done()
