"""A call that fails while it is started: its caller, who waits for it or asks nothing, gets it once."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from twinkle_mesh import DeviceGroup
from twinkle_remote import TwinkleError, on, release, remote_class, remote_function, run_on_workers, session, stream
from twinkle_remote.backends.support import start_on_workers
from twinkle_remote.call.pending import PendingCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GROUPS = [DeviceGroup("one", 1, "CPU"), DeviceGroup("two", 2, "CPU")]


@remote_class()
class Fails:
    """Fails in every way to call it."""

    def __init__(self, broken: bool = False) -> None:
        if broken:
            raise KeyError("broken")

    def __iter__(self) -> Fails:
        return self

    @remote_function(collect="flatten")
    def __next__(self) -> list[int]:
        raise KeyError("step")

    @remote_function(dispatch="slice", collect="flatten")
    def rows(self, batch: list[int]) -> list[int]:
        raise KeyError(batch[0])

    @remote_function(dispatch="all", collect="first")
    def one(self) -> int:
        raise KeyError("one")


@remote_class()
class FailsToIterate:
    def __iter__(self) -> Iterator[int]:
        raise KeyError("iteration")


def fail(component: object) -> None:
    raise KeyError("function")


def _step() -> None:
    next(iter(on("two").create(Fails)))


def _iteration() -> None:
    iter(on("two").create(FailsToIterate))


def _method() -> None:
    on("one").create(Fails).one().result()  # type: ignore[attr-defined]  # a method that its handle has


def _constructor() -> None:
    on("two").create(Fails, broken=True)


def _function() -> None:
    run_on_workers(on("two").create(Fails), fail)


def _probe() -> None:
    start_on_workers(on("two").create(Fails), fail, prefetched=True)


def _held() -> None:
    start_on_workers(on("two").create(Fails), fail).wait()


def _stage() -> None:
    component = on("two").create(Fails)
    with stream([[1, 2], [3, 4], [5, 6]], component.rows, ahead=2) as rows:
        list(rows)


def _release() -> None:
    release(on("two").create(Fails))


PROGRAMS = [_step, _iteration, _method, _constructor, _function, _probe, _held, _stage, _release]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_call_that_fails_at_once_is_its_callers(
    program: Callable[[], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listened = PendingCall.listen
    ended: list[str] = []

    def listen(call: PendingCall) -> None:
        """As another thread may do it: the call is over, and that is known, before who made it has it."""
        listened(call)
        until = time.monotonic() + 0.2
        while not call.done() and time.monotonic() < until:
            time.sleep(0.001)
        ended.append(call.name)

    monkeypatch.setattr(PendingCall, "listen", listen)
    with caplog.at_level(logging.ERROR, "twinkle.remote"), session("threads", groups=GROUPS):
        with suppress(TwinkleError):
            program()
        monkeypatch.undo()
    assert ended
    assert not [record.getMessage() for record in caplog.records if "no caller waited" in record.getMessage()]
