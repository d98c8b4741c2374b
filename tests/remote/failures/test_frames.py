"""Ctrl-C while a program waits: it sees its own frames, and little of these packages."""

from __future__ import annotations

import signal
import threading
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from twinkle_mesh import DeviceGroup
from twinkle_remote import Lazy, as_completed, get, on, remote_class, remote_function, session, stream, submit
from twinkle_remote.failures.frames import _waits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAITING, GO_ON = threading.Event(), threading.Event()


def interrupted_collect(results: list[int], device_mesh: object) -> int:
    GO_ON.set()
    WAITING.set()
    threading.Event().wait(60.0)
    return results[0]


@remote_class()
class Slow:
    @remote_function(dispatch="all", collect="first")
    def wait(self) -> int:
        WAITING.set()
        GO_ON.wait(60.0)
        return 1

    @remote_function()
    def items(self) -> Iterator[int]:
        yield self.wait()

    def __iter__(self) -> Slow:
        return self

    def __next__(self) -> int:
        return self.wait()

    @remote_function(dispatch="slice_dp", collect="flatten")
    def rows(self, rows: list[int]) -> list[int]:
        self.wait()
        return rows

    @remote_function(dispatch="all", collect=interrupted_collect)
    def collected(self) -> int:
        return 1


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Interrupts this thread soon after a test waits, as Ctrl-C does."""
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    WAITING.clear()
    GO_ON.clear()
    main, over = threading.get_ident(), threading.Event()

    def send() -> None:
        WAITING.wait(60.0)
        if not over.wait(0.3):
            signal.pthread_kill(main, signal.SIGUSR1)
            GO_ON.set()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        WAITING.set()
        GO_ON.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)


def frames_of(wait: Callable[[Lazy[Any]], object], method: str) -> list[str]:
    with session("threads", groups=[DeviceGroup("two", 2, "CPU")]):
        slow = on("two").create(Slow)
        with pytest.raises(KeyboardInterrupt) as caught:
            wait(submit(getattr(slow, method)))
        return [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]


@pytest.mark.parametrize(
    ("wait", "ours"),
    [
        (get, 1),
        (lambda lazy: get({"nested": [lazy, 1]}, timeout=60.0), 1),
        (lambda lazy: lazy.result(), 1),
        (lambda lazy: lazy.wait(), 1),
        (lambda lazy: lazy + 1, 1),
        (lambda lazy: lazy.real, 1),
        (lambda lazy: list(as_completed(lazy)), 1),
    ],
)
def test_ctrl_c_shows_the_frames_of_the_program(ctrl_c: None, wait: Callable[[Lazy[Any]], object], ours: int) -> None:
    frames = frames_of(wait, "wait")
    own = [name for name in frames if name == __file__]
    assert own == frames[: len(own)] and len(frames) - len(own) <= ours


@pytest.mark.parametrize(
    "loop",
    [
        lambda slow: slow.items(),
        iter,
        lambda slow: stream([[1], [2]], slow.rows, ahead=2),
        lambda slow: stream([[1], [2]], slow.rows),
    ],
    ids=["generator", "component", "stream", "synchronous stream"],
)
def test_ctrl_c_in_a_loop_shows_the_frames_of_the_program(ctrl_c: None, loop: Callable[[Any], Iterator[Any]]) -> None:
    with session("threads", groups=[DeviceGroup("two", 2, "CPU")]):
        slow = on("two").create(Slow)
        items = loop(slow)
        with pytest.raises(KeyboardInterrupt) as caught:
            get([get(item) for item in items])
        files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert files[0] == __file__ and sum(name != __file__ for name in files) <= 1


@pytest.mark.parametrize("wait", [get, lambda lazy: lazy.result()])
def test_ctrl_c_within_code_of_the_program_shows_where(ctrl_c: None, wait: Callable[[Lazy[Any]], object]) -> None:
    frames = frames_of(wait, "collected")
    assert __file__ in frames[-3:] and any("twinkle_remote" in name for name in frames)


def test_compiled_code_of_ray_is_waited_in_and_that_of_a_program_is_not() -> None:
    assert all(map(_waits, ("python/ray/_raylet.pyx", "python/ray/includes/common.pxi")))
    assert not any(map(_waits, ("python/mine/_fast.pyx", "/home/me/python/ray/loop.py")))
