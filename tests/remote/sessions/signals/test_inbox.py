"""What several threads put arrives once and in order; a wait ends with a value or with its time."""

from __future__ import annotations

import threading
import time

from twinkle_remote.sessions.signals.inbox import Inbox


def test_all_values_arrive_once_and_in_the_order_of_each_thread() -> None:
    inbox: Inbox[tuple[int, int]] = Inbox()

    def put(number: int) -> None:
        for value in range(2000):
            inbox.put((number, value))

    threads = [threading.Thread(target=put, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    found: list[tuple[int, int]] = []
    until = time.monotonic() + 60.0
    while len(found) < 8000 and time.monotonic() < until:
        found += inbox.take(10.0)
    for thread in threads:
        thread.join()
    assert all([value for one, value in found if one == number] == list(range(2000)) for number in range(4))
    assert inbox.take(0.0) == []


def test_a_wait_ends() -> None:
    inbox: Inbox[int] = Inbox()
    assert inbox.take(0.01) == []
    threading.Timer(0.05, inbox.put, (1,)).start()
    began = time.monotonic()
    assert inbox.take(60.0) == [1] and time.monotonic() - began < 30.0
