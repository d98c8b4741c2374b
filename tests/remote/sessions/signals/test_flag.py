"""A flag: it is waited for while signals come, and set by their handlers."""

from __future__ import annotations

import threading
import time
from itertools import count

from tests.remote.signals import interrupted_at_step

from twinkle_remote.sessions.signals.flag import Flag


def test_all_that_wait_go_on() -> None:
    flag, found = Flag(), []
    threads = [threading.Thread(target=lambda: found.append(flag.wait(30.0))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert not flag.is_set() and not flag.wait(0.01)
    flag.set()
    flag.set()
    began = time.monotonic()
    for thread in threads:
        thread.join(30.0)
    assert found == [True] * 4 and flag.is_set() and flag.wait(30.0)
    assert time.monotonic() - began < 10.0


def test_ctrl_c_at_any_step_of_a_wait_leaves_no_lock_taken() -> None:
    for step in count(1):
        flag = Flag()
        was_interrupted = interrupted_at_step(step, lambda: flag.wait(0.001))  # noqa: B023  called at once
        setting = threading.Thread(target=flag.set, daemon=True)
        setting.start()
        setting.join(5.0)
        assert not setting.is_alive() and flag.wait(5.0), step
        if not was_interrupted:
            break
