"""A lane does work in its order on one thread, goes on after an error, and ends."""

from __future__ import annotations

import threading

import pytest

from twinkle_remote.http.server.lane import Lane


def test_work_is_done_in_order_on_one_thread() -> None:
    lane, seen, threads = Lane("lane"), [], set()

    def work(number: int) -> int:
        seen.append(number)
        threads.add(threading.current_thread().name)
        return number

    futures = [lane.submit(work, number) for number in range(100)]
    assert [future.result(30.0) for future in futures] == seen == list(range(100))
    assert threads == {"lane"}
    with pytest.raises(ZeroDivisionError):
        lane.submit(lambda: 1 // 0).result(30.0)
    assert lane.submit(work, 5).result(30.0) == 5
    lane.shutdown()


def test_it_ends_after_the_work_that_it_was_given() -> None:
    lane, gate, done = Lane("lane"), threading.Event(), []
    assert lane.is_idle()
    lane.put(lambda: gate.wait(30.0))
    assert not lane.is_idle()
    lane.put(lambda: done.append(1))
    lane.shutdown(wait=False)
    with pytest.raises(RuntimeError, match="lane has ended"):
        lane.put(lambda: done.append(2))
    gate.set()
    lane.shutdown()
    assert done == [1] and lane.is_idle()
    Lane("unused").shutdown()
