"""Calls in flight are bounded, and none of them is lost."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import twinkle_remote as twinkle
from twinkle_remote import remote_class, remote_function
from twinkle_remote.protocol.messages import MAX_IN_FLIGHT
from twinkle_remote.sessions.current import running

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_pair")]
BOUND = MAX_IN_FLIGHT
CALLS = BOUND + 44


@remote_class()
class Slow:
    """Waits for a file before it does anything else.

    Args:
        gate: The file.
    """

    def __init__(self, gate: str) -> None:
        self.gate = Path(gate)
        self.seen: list[int] = []

    @remote_function(dispatch="all", timeout=60)
    def wait(self) -> None:
        while not self.gate.exists():
            threading.Event().wait(0.02)

    @remote_function(dispatch="all", timeout=60)
    def note(self, step: int) -> int:
        self.seen.append(step)
        return step

    @remote_function(dispatch="all", collect="first")
    def all(self) -> list[int]:
        return self.seen


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "open"
    yield path
    path.touch()


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
    ahead.join(60)
    assert not ahead.is_alive() and max(in_flight) <= BOUND
    waiting.result(60)
    assert [lazy.result(60) for lazy in made] == [[step] * 2 for step in range(CALLS)]
    assert slow.all() == list(range(CALLS))
