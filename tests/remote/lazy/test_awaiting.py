"""Awaiting results: as many at once as there are, and no longer than the task that awaits."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

import pytest

from twinkle_mesh import DeviceGroup
from twinkle_remote import CallTimeoutError, current_worker, on, remote_class, remote_function, session, submit

if TYPE_CHECKING:
    from collections.abc import Iterator

AT_ONCE = 80


@remote_class()
class Service:
    @remote_function(dispatch="all", collect="first")
    def serve(self, until: threading.Event) -> int | None:
        until.wait(60)
        return current_worker().rank

    @remote_function(dispatch="all", collect="first", timeout=0.1)
    def late(self, until: threading.Event) -> None:
        until.wait(60)

    @remote_function(dispatch="all", collect="first")
    def fail(self, until: threading.Event) -> None:
        until.wait(60)
        raise KeyError("awaited")

    @remote_function(dispatch="all", collect="first")
    def stop(self) -> None:
        raise StopIteration("early")


@pytest.fixture
def service() -> Iterator[Service]:
    with session("threads", groups=[DeviceGroup("one", 1, "CPU"), DeviceGroup("two", 1, "CPU")]):
        yield on("one").create(Service)


def test_a_wait_that_is_given_up_ends_the_loop_in_time(service: Service) -> None:
    until = threading.Event()
    lazy = submit(service.serve, until)

    async def program() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(lazy, 0.1)

    began = time.monotonic()
    asyncio.run(program())
    assert time.monotonic() - began < 20 and not lazy.done()
    until.set()
    assert lazy.result() == 0


def test_as_many_are_awaited_at_once_as_there_are(service: Service) -> None:
    until, ended = threading.Event(), threading.Event()
    ended.set()

    async def program() -> list[int | None]:
        waiting = [asyncio.ensure_future(submit(service.serve, until)) for _ in range(AT_ONCE)]
        await asyncio.sleep(0)
        assert await submit(on("two").create(Service).serve, ended) == 0  # none of those before it has ended
        until.set()
        return await asyncio.gather(*waiting)

    assert asyncio.run(program()) == [0] * AT_ONCE


def test_failures_and_deadlines_are_raised_where_it_is_awaited(service: Service) -> None:
    until = threading.Event()

    async def program() -> None:
        with pytest.raises(CallTimeoutError, match=r"Service\.late on one\[1\].*0\.1 s"):
            await submit(service.late, until)
        until.set()
        with pytest.raises(KeyError, match="awaited"):
            await submit(service.fail, until)
        with pytest.raises(RuntimeError, match="early"):
            await submit(service.stop)

    asyncio.run(program())


def test_a_failure_after_the_wait_was_given_up_is_unseen() -> None:
    until = threading.Event()

    async def give_up(service: Service) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(submit(service.fail, until), 0.05)

    def program() -> None:
        with session("threads", groups=[DeviceGroup("one", 1, "CPU")]):
            asyncio.run(give_up(on("one").create(Service)))
            until.set()

    with pytest.raises(KeyError, match=r"Service.fail failed"):
        program()
