"""The pending answers of threads: set once, and told to each that waits, whoever comes first."""

from __future__ import annotations

import threading
import time
from itertools import count

import pytest
from tests.remote.signals import interrupted_at_step

from twinkle_remote.backends.thread_reply import ThreadReply, wait_for_any
from twinkle_remote.protocol import Outcome


def test_the_first_outcome_stays() -> None:
    reply = ThreadReply(3)
    first = Outcome(3, payload=1)
    assert not reply.done()
    reply.complete(first)
    reply.complete(Outcome(3, payload=2))
    assert reply.outcome is first
    assert wait_for_any([reply], 0.0) == [reply]


def test_threads_that_complete_and_wait_at_once_agree_on_one_outcome() -> None:
    for _ in range(300):
        reply = ThreadReply(0)
        start = threading.Barrier(4)
        seen: list[object] = []

        def complete(reply: ThreadReply = reply, start: threading.Barrier = start) -> None:
            start.wait(30)
            reply.complete(Outcome(0))

        def wait(reply: ThreadReply = reply, start: threading.Barrier = start, seen: list[object] = seen) -> None:
            start.wait(30)
            reply.when_done(seen.append)
            assert wait_for_any([reply], 30.0) == [reply]
            seen.append(reply.outcome)

        threads = [threading.Thread(target=target) for target in (complete, complete, wait, wait)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(seen) == 4 and set(map(id, seen)) == {id(reply.outcome)}


@pytest.mark.parametrize("timeout", [0.0, 0.05])
def test_a_wait_ends_at_its_limit(timeout: float) -> None:
    began = time.monotonic()
    assert wait_for_any([ThreadReply(0), ThreadReply(1)], timeout) == []
    assert time.monotonic() - began >= timeout


def test_only_the_replies_that_are_done_are_returned() -> None:
    replies = [ThreadReply(rank) for rank in range(4)]
    for rank in (1, 3):
        replies[rank].complete(Outcome(rank))
    assert wait_for_any(replies, None) == [replies[1], replies[3]]


def test_ctrl_c_at_any_step_of_a_wait_leaves_no_lock_taken() -> None:
    for step in count(1):
        replies = [ThreadReply(0), ThreadReply(1)]
        was_interrupted = interrupted_at_step(step, lambda: wait_for_any(replies, 0.001))  # noqa: B023  called at once
        completing = threading.Thread(target=replies[1].complete, args=(Outcome(1),), daemon=True)
        completing.start()
        assert wait_for_any(replies, 5.0) == [replies[1]], step
        completing.join(5.0)
        assert not completing.is_alive(), step
        if not was_interrupted:
            assert step > 10
            break
