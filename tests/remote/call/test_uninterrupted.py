"""Ctrl-C while a call is sent to several ranks: all of them get it, or none does, so that later calls meet."""

from __future__ import annotations

import signal
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.remote.signals import interrupted_at_step

from twinkle_mesh import DeviceGroup
from twinkle_remote import get, on, remote_class, remote_function, session, submit
from twinkle_remote.call.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from collections.abc import Callable

_SECONDS = 30.0


@remote_class()
class Meets:
    barrier = threading.Barrier(3)

    def __init__(self) -> None:
        self._log: list[int] = []

    @remote_function(dispatch="all", collective=True)
    def meet(self, number: int) -> int:
        self._log.append(number)
        self.barrier.wait(_SECONDS)
        return number

    @remote_function(dispatch="slice_dp", collect="flatten")
    def rows(self, rows: list[int]) -> list[int]:
        self._log.append(-1)
        self.barrier.wait(_SECONDS)
        return rows

    @remote_function(dispatch="all", collect="none")
    def log(self) -> list[int]:
        return self._log


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Ctrl-C at the end of a generator
@pytest.mark.parametrize("kind", ["collective", "rows", "a lazy argument"])
def test_all_ranks_get_a_call_that_is_interrupted_at_any_step_or_none(kind: str) -> None:
    with session("threads", groups=[DeviceGroup("three", 3, "CPU")]):
        meets = on("three").create(Meets)
        calls: dict[str, Callable[[int], object]] = {
            "collective": meets.meet,
            "rows": lambda number: meets.rows([number, 1, 2, 3]),
            "a lazy argument": lambda number: meets.rows(meets.rows([number, 1, 2, 3])),
        }
        got: Any = get(meets.log())
        step = 1
        while interrupted_at_step(step, partial(calls[kind], step)):
            assert get(submit(meets.meet, -step), _SECONDS) == [-step] * 3
            got = get(meets.log())
            assert got[0] == got[1] == got[2]
            step += 1
        assert step > 50 and len(got[0]) > step


def test_an_interrupt_comes_after_the_function() -> None:
    steps: list[int] = []
    main, begun = threading.get_ident(), threading.Event()

    def slow() -> None:
        begun.set()
        for number in range(3):
            time.sleep(0.05)
            steps.append(number)

    def interrupt() -> None:
        begun.wait(_SECONDS)
        signal.pthread_kill(main, signal.SIGINT)

    sender = threading.Thread(target=interrupt)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        uninterrupted(slow)
    sender.join()
    assert steps == [0, 1, 2]


def test_values_errors_and_context_are_those_of_the_function() -> None:
    assert uninterrupted(lambda: 7) == 7
    with pytest.raises(KeyError, match="lost"):
        uninterrupted(lambda: dict[str, int]()["lost"])
    found = []
    thread = threading.Thread(target=lambda: found.append(uninterrupted(threading.current_thread)))
    thread.start()
    thread.join()
    assert found == [thread]


def test_an_interrupt_at_any_step_waits_for_no_lock() -> None:
    step = 1
    while interrupted_at_step(step, lambda: uninterrupted(lambda: None)):
        step += 1
    assert uninterrupted(lambda: 7) == 7
