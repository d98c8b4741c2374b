"""An executor does work in its order on one thread, goes on after an error, and ends."""

from __future__ import annotations

import threading

import pytest

from twinkle_http.server.calls.serial_executor import SerialExecutor


def test_work_is_done_in_order_on_one_thread() -> None:
    executor, seen, threads = SerialExecutor("executor"), [], set()

    def work(number: int) -> int:
        seen.append(number)
        threads.add(threading.current_thread().name)
        return number

    futures = [executor.submit(work, number) for number in range(100)]
    assert [future.result(30.0) for future in futures] == seen == list(range(100))
    assert threads == {"executor"}
    with pytest.raises(ZeroDivisionError):
        executor.submit(lambda: 1 // 0).result(30.0)
    assert executor.submit(work, 5).result(30.0) == 5
    executor.shutdown()


def test_it_ends_after_the_work_that_it_was_given() -> None:
    executor, gate, done = SerialExecutor("executor"), threading.Event(), []
    assert executor.is_idle()
    executor.put(lambda: gate.wait(30.0))
    assert not executor.is_idle()
    executor.put(lambda: done.append(1))
    executor.shutdown(wait=False)
    with pytest.raises(RuntimeError, match="executor has ended"):
        executor.put(lambda: done.append(2))
    gate.set()
    executor.shutdown()
    assert done == [1] and executor.is_idle()
    SerialExecutor("unused").shutdown()
