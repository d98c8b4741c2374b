"""Failures after which the group is still usable: what is raised, when, what it says; and the bound of calls."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import twinkle_remote as twinkle
from twinkle_mesh import DeviceMesh
from twinkle_remote.protocol.messages import MAX_IN_FLIGHT
from twinkle_remote.sessions.session import running

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.ray
MESH = DeviceMesh.from_sizes(dp_size=2, tp_size=2)


class OddError(Exception):
    """Pickles, but not back."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"odd {first} {second}")


class LockedError(Exception):
    """Does not pickle."""

    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()


@twinkle.remote_class()
class Fragile:
    def __init__(self) -> None:
        self.calls = 0

    @twinkle.remote_function(dispatch="all")
    def fail(self, kind: str, ranks: list[int], gate: str = "") -> Any:
        """Fail on some ranks; the others wait until there is a file."""
        self.calls += 1
        if twinkle.current_worker().rank not in ranks:
            while gate and not os.path.exists(gate):
                time.sleep(0.02)
            return "fine"
        if kind == "key":
            raise KeyError("missing")
        if kind == "odd":
            raise OddError(1, 2)
        if kind == "locked":
            raise LockedError
        if kind == "large":
            raise RuntimeError("x" * 200_000)
        if kind == "exit":
            sys.exit(3)
        return threading.Lock()

    @twinkle.remote_function(dispatch="all")
    def count(self, anything: Any = None) -> int:
        return self.calls

    @twinkle.remote_function(dispatch="all", timeout=5)
    def late(self, calls: int) -> int:
        if twinkle.current_worker().rank == 1:
            doze(calls)
        return 1


def doze(calls: int) -> None:
    if calls:
        doze(calls - 1)
    else:
        time.sleep(8)


@pytest.fixture
def fragile(ray_session: None) -> Iterator[Fragile]:
    made = twinkle.on("four", MESH).create(Fragile)
    yield made
    assert made.fail("key", []) == ["fine"] * 4  # still usable


def test_the_first_failure_and_its_large_message_arrive_while_others_are_busy(fragile: Fragile, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with pytest.raises(RuntimeError) as caught:
        fragile.fail("large", [2], str(gate))
    gate.touch()
    assert isinstance(caught.value, twinkle.RemoteCallError)
    text = str(caught.value)
    assert text.startswith("Fragile.fail failed on four[2/4 dp=1 tp=0] (node ")
    assert " pid " in text and "RuntimeError: xxx" in text and "x" * 200_000 in text
    assert f"called from {__file__}:" in text
    assert 'raise RuntimeError("x" * 200_000)' in text
    assert "twinkle_ray/workers/rank_actor.py" not in text


@pytest.mark.parametrize(("kind", "message"), [("odd", "odd 1 2"), ("locked", "locked"), ("exit", "SystemExit: 3")])
def test_what_does_not_pickle_is_told_as_text(fragile: Fragile, kind: str, message: str) -> None:
    with pytest.raises(twinkle.RemoteCallError, match=message) as caught:
        fragile.fail(kind, [1])
    assert "four[1/4 dp=0 tp=1]" in str(caught.value)


def test_a_result_that_cannot_be_sent_names_its_type(fragile: Fragile) -> None:
    with pytest.raises(TypeError, match="the result, a lock, cannot be sent"):
        fragile.fail("result", [0])


def test_an_argument_that_cannot_be_sent_is_named_and_nothing_runs(fragile: Fragile) -> None:
    before = fragile.count()
    with pytest.raises(twinkle.TwinkleError, match=r"Fragile.count: argument anything \(\[<unlocked.*cannot be sent"):
        fragile.count(anything=[threading.Lock()])
    assert fragile.count() == before


def test_a_late_call_says_who_is_late_and_shows_the_two_ends_of_a_deep_stack(fragile: Fragile) -> None:
    with pytest.raises(twinkle.CallTimeoutError) as caught:
        fragile.late(30)
    assert caught.value.done == (0, 2, 3)
    assert caught.value.pending == (1,)
    assert "four[1/4 dp=0 tp=1]" in str(caught.value)
    assert re.search(r"in late(.|\n)*\.\.\. \d+ frames \.\.\.(.|\n)*in doze", str(caught.value))


def test_a_rank_that_waits_for_its_input_says_so(fragile: Fragile, tmp_path: Path) -> None:
    other, gate = twinkle.on("two").create(Fragile), tmp_path / "gate"
    late = twinkle.submit(fragile.fail, "key", [], str(gate))
    with pytest.raises(twinkle.CallTimeoutError) as caught:
        twinkle.submit(other.count, late).result(0.5)
    told = "  ranks 0, 1:\n    it waits for the arguments of the call"
    assert told in str(caught.value)
    gate.touch()
    assert late.result(30) == ["fine"] * 4


BOUND = MAX_IN_FLIGHT
CALLS = BOUND + 44


@twinkle.remote_class()
class Slow:
    """Waits for a file before it does anything else.

    Args:
        gate: The file.
    """

    def __init__(self, gate: str) -> None:
        self.gate = Path(gate)
        self.seen: list[int] = []

    @twinkle.remote_function(dispatch="all", timeout=300)
    def wait(self) -> None:
        while not self.gate.exists():
            threading.Event().wait(0.02)

    @twinkle.remote_function(dispatch="all", timeout=300)
    def note(self, step: int) -> int:
        self.seen.append(step)
        return step

    @twinkle.remote_function(dispatch="all", collect="first")
    def all(self) -> list[int]:
        return self.seen


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "open"
    yield path
    path.touch()


@pytest.mark.usefixtures("ray_session")
def test_a_driver_that_runs_ahead_waits_for_its_workers(gate: Path) -> None:
    slow = twinkle.on("two").create(Slow, str(gate))
    waiting = twinkle.submit(slow.wait)
    in_flight: list[int] = []
    made: list[twinkle.Lazy[int | list[int]]] = []

    def submit() -> None:
        for step in range(CALLS):
            made.append(twinkle.submit(slow.note, step))
            in_flight.append(len(running().in_flight.calls()))

    ahead = threading.Thread(target=submit, daemon=True)
    ahead.start()
    ahead.join(3)
    assert ahead.is_alive() and len(made) < BOUND  # the gate is closed, and there is no room
    gate.touch()
    ahead.join(200)
    assert not ahead.is_alive() and max(in_flight) <= BOUND
    waiting.result(200)
    assert [lazy.result(200) for lazy in made] == [[step] * 2 for step in range(CALLS)]
    assert slow.all() == list(range(CALLS))
