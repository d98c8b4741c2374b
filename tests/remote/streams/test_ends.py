"""The end of a stream: async work is cancelled, nothing is waited for in vain, also after Ctrl-C."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial
from itertools import count

import pytest
from tests.remote.signals import interrupted_at_step

from twinkle_mesh import DeviceGroup
from twinkle_remote import get, on, remote_class, remote_function, session, stream, submit

WAIT = 30.0
begun, ended, leave = threading.Semaphore(0), threading.Semaphore(0), threading.Event()


@remote_class()
class Maker:
    @remote_function(collect="flatten")
    async def wait(self, rows: list[int]) -> list[int]:
        begun.release()
        try:
            if rows[0]:
                await asyncio.sleep(10 * WAIT)
        finally:
            ended.release()
        return rows

    @remote_function(collect="flatten")
    def work(self, rows: list[int]) -> list[int]:
        begun.release()
        if rows[0]:
            assert leave.wait(WAIT)
        ended.release()
        return rows


def test_a_closed_stream_cancels_async_calls_and_its_component_goes_on() -> None:
    with session("threads", groups=[DeviceGroup("one", 1, "CPU")]):
        maker = on("one").create(Maker)
        with stream([[row] for row in range(8)], maker.wait, rows=1, ahead=5, order="arrival") as batches:
            assert get(next(batches)) == [0]
            for _ in range(6):
                assert begun.acquire(timeout=WAIT)
        for _ in range(6):
            assert ended.acquire(timeout=WAIT), "each coroutine was cancelled, and cleaned up"
        assert get(submit(maker.work, [0])) == [0]


def test_a_closed_stream_does_not_wait_for_ordinary_calls() -> None:
    leave.clear()
    with session("threads", groups=[DeviceGroup("two", 2, "CPU")]):
        maker = on("two").create(Maker)
        batches = stream([[row] for row in range(8)], maker.work, rows=1, ahead=2, order="arrival")
        assert get(next(batches)) == [0]
        batches.close()
        assert not leave.is_set()
        leave.set()
        assert get(submit(maker.work, [0, 0])) == [0, 0], "the workers are free when they are through"
        assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("twinkle-stream")]


@remote_class()
class Quick:
    @remote_function(collect="flatten")
    def take(self, rows: list[int]) -> list[int]:
        time.sleep(0.003)  # longer than the loop takes to ask for it
        return rows


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it may come within a finalizer
def test_ctrl_c_at_any_step_of_a_batch_leaves_a_stream_that_ends() -> None:
    with session("threads", groups=[DeviceGroup("two", 2, "CPU")]):
        quick = on("two").create(Quick)
        for step in count(1):
            with stream([[1], [2], [3]], quick.take, ahead=1) as batches:
                next(batches)
                was_interrupted = interrupted_at_step(step, partial(next, batches))
            assert "twinkle-stream" not in [thread.name for thread in threading.enumerate()], step
            if not was_interrupted:
                assert step > 50
                break
