"""The figures of the calls that workers made, asked of workers that are idle, busy or gone."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

import twinkle_remote as twinkle
from twinkle_mesh import DeviceGroup
from twinkle_remote import get, on, remote_class, remote_function, submit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.ray, pytest.mark.long]


@remote_class()
class Callee:
    @remote_function(dispatch="all", collect="first")
    def add(self, amount: int) -> int:
        return amount + 1

    @remote_function(dispatch="all", collect="first")
    async def add_later(self, amount: int) -> int:
        return amount + 1


@remote_class()
class Caller:
    def __init__(self, callee: Callee) -> None:
        self.callee = callee

    @remote_function(dispatch="all", collect="first")
    def call(self, times: int, gate: str = "") -> int:
        """Call, and then stay busy until a file is there."""
        total = sum(int(get(self.callee.add(1))) for _ in range(times))
        until = time.monotonic() + 60
        while gate and not os.path.exists(gate) and time.monotonic() < until:
            time.sleep(0.01)
        return total

    @remote_function(dispatch="all", collect="first")
    def call_and_forget(self) -> None:
        submit(self.callee.add, 1)
        submit(self.callee.add_later, 1)

    @remote_function(dispatch="all", collect="first")
    def seen_here(self) -> list[str]:
        return [record.method for record in twinkle.stats()]

    @remote_function(dispatch="all", collect="first", execute="first")
    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def groups(ray_cluster: None) -> Iterator[None]:
    with twinkle.session("ray", groups=[DeviceGroup("callers", 2, "CPU"), DeviceGroup("callees", 1, "CPU")]):
        yield


def _called(name: str = "Callee.add") -> list[Any]:
    return [record for record in twinkle.stats() if record.method == name]


def test_stats_have_the_calls_of_workers_when_they_are_busy_and_when_they_are_lost(
    groups: None, tmp_path: Path
) -> None:
    caller = on("callers").create(Caller, on("callees").create(Callee))
    gate = tmp_path / "gate"
    assert get(caller.call(2)) == 4
    assert len(_called()) == 4
    busy = submit(caller.call, 1, str(gate))
    began = time.monotonic()
    assert len(_called()) == 4, "a worker that runs a method tells what it calls later"
    assert time.monotonic() - began < 30
    gate.touch()
    assert get(busy) == 2
    made = _called()
    assert [(record.group, record.workers, record.answered) for record in made] == [("callees", 1, 1)] * 6
    assert all(record.seconds.keys() == {0} and record.queue_seconds < 60 for record in made)
    assert get(caller.seen_here()) == ["Callee.add"] * 3

    get(caller.call_and_forget())
    until = time.monotonic() + 60
    while not all(one.answered for one in [*_called(), *_called("Callee.add_later")]) and time.monotonic() < until:
        time.sleep(0.05)
    assert [record.answered for record in _called()] == [1] * 8
    assert [record.answered for record in _called("Callee.add_later")] == [1] * 2

    path = twinkle.write_timeline(tmp_path / "calls.json")
    assert path.read_text().count("Callee.add_later") >= 2
    with pytest.raises(twinkle.WorkerDiedError):
        get(caller.die())
    assert len(_called()) == 8  # what a worker had told stays
