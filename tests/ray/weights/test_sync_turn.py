"""The turn of a sync: one at a time, and Ctrl-C at any step leaves it free and takes no lock for ever."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest
import torch
from tests.remote.signals import interrupted_at_step

from twinkle_mesh import DeviceGroup
from twinkle_ray.weights import WeightSync
from twinkle_ray.weights.sync_turn import SyncTurn, wait_until
from twinkle_remote import get, on, remote_class, remote_function, session

if TYPE_CHECKING:
    from collections.abc import Callable

_INTERRUPTS = int(os.environ.get("TWINKLE_TEST_INTERRUPTS", "15"))


def soon() -> float:
    return time.monotonic() + 5.0


def in_thread(function: Callable[[], object]) -> bool:
    """Whether another thread comes to the end of a function soon."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(5.0)
    return not thread.is_alive()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # as a generator is closed
@pytest.mark.parametrize("waits", [False, True])
def test_an_interrupt_at_any_step_leaves_no_lock_taken(waits: bool) -> None:
    step, turn = 1, SyncTurn()

    def work() -> None:
        if waits:
            turn.take_now()
            with pytest.raises(TimeoutError):
                turn.when_free(0.0, turn.take_now)
            wait_until(lambda: False, 0.0)
        else:
            turn.when_free(soon(), turn.take_now)
        turn.end()

    while interrupted_at_step(step, work):
        turn.end_own()
        assert in_thread(lambda: turn.when_free(soon(), turn.take_now))
        turn.end()
        step += 1
    assert step > 5


def test_one_sync_is_under_way_at_a_time() -> None:
    turn, order = SyncTurn(), list[str]()
    turn.when_free(soon(), turn.take_now)
    other = threading.Thread(target=lambda: turn.when_free(soon(), lambda: order.append("other")))
    other.start()
    order.append("first")
    turn.end()
    other.join()
    assert order == ["first", "other"]
    turn.when_free(soon(), turn.take_now)
    with pytest.raises(TimeoutError):
        turn.when_free(time.monotonic() + 0.02, turn.take_now)


@remote_class()
class Holder:
    def __init__(self) -> None:
        self._weight = torch.zeros(4)

    @remote_function(dispatch="all", collect="first", sync=True)
    def fill(self, value: float) -> None:
        self._weight.fill_(value)

    @remote_function(dispatch="all", collect="none")
    def values(self) -> list[float]:
        return list(map(float, self._weight))

    def weights(self) -> dict[str, torch.Tensor]:
        return {"weight": self._weight}


def sync_until_interrupted(sync: WeightSync, timer: threading.Timer) -> None:
    try:
        timer.start()
        while True:
            sync()
    finally:
        timer.join()


def test_syncs_go_on_after_real_interrupts() -> None:
    rng, main = random.Random(0), threading.get_ident()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with session("threads", groups=[DeviceGroup("one", 1, "CPU"), DeviceGroup("two", 2, "CPU")]):
            source, target = on("one").create(Holder), on("two").create(Holder)
            sync = WeightSync(source, target, timeout=20.0)
            for number in range(_INTERRUPTS):
                source.fill(number)
                timer = threading.Timer(rng.random() * 0.02, signal.pthread_kill, (main, signal.SIGINT))
                with pytest.raises(KeyboardInterrupt):
                    sync_until_interrupted(sync, timer)
                version, began = sync(), time.monotonic()
                assert version == sync.version and time.monotonic() - began < 10.0
                assert get(target.values()) == [[float(number)] * 4] * 2
    finally:
        signal.signal(signal.SIGINT, before)
