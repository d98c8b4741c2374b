"""Messages over NCCL, by a substitute of the stream's event."""

from __future__ import annotations

from threading import Event, Timer

import pytest

from twinkle_ray.weights.transport.nccl import NcclWork


class StreamEvent:
    """What a stream has passed, or passes when its communicator is aborted: kernels end then, without their data."""

    def __init__(self, aborted: Event, *, passed: bool) -> None:
        self._aborted, self._passed = aborted, passed

    def query(self) -> bool:
        return self._passed or self._aborted.is_set()


def test_a_message_that_is_through_has_arrived() -> None:
    aborted = Event()
    NcclWork(StreamEvent(aborted, passed=True), [], aborted, 1.0).wait()


def test_a_message_that_an_abort_ends_has_not_arrived() -> None:
    aborted = Event()
    work = NcclWork(StreamEvent(aborted, passed=False), [], aborted, 30.0)
    timer = Timer(0.05, aborted.set)
    timer.start()
    with pytest.raises(RuntimeError, match="aborted"):
        work.wait()
    timer.join()
    with pytest.raises(RuntimeError, match="aborted"):
        work.wait()


def test_a_message_that_does_not_come_is_late() -> None:
    aborted = Event()
    with pytest.raises(RuntimeError, match="in time"):
        NcclWork(StreamEvent(aborted, passed=False), [], aborted, 0.02).wait()
