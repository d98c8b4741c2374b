"""Loader processes are started by one thread at a time."""

from __future__ import annotations

import os
import threading
import time

import pytest

from twinkle_data.loading.process_start import in_a_thread


def test_threads_start_processes_one_after_the_other() -> None:
    inside: list[int] = []
    seen: list[int] = []

    def work() -> None:
        inside.append(1)
        time.sleep(0.02)
        seen.append(len(inside))
        inside.pop()

    threads = [threading.Thread(target=in_a_thread, args=(work,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert seen == [1] * 8


def test_a_forked_process_starts_its_own() -> None:
    def fork() -> int:
        child = os.fork()
        if child == 0:
            os._exit(in_a_thread(lambda: 7))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert in_a_thread(fork) == 7


def test_an_error_comes_to_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        in_a_thread(lambda: 1 / 0)
    assert in_a_thread(lambda: 3) == 3
