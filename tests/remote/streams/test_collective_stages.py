"""Stages whose body runs collectives: all ranks enter each call together, in one order."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import CallTimeoutError, get, on, remote_class, remote_function, session, stream
from twinkle_remote.context import current_worker

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUPS = [DeviceGroup("four", 4, "CPU"), DeviceGroup("two", 2, "CPU"), DeviceGroup("one", 1, "CPU")]
_WAIT_SECONDS = 10.0

_meetings: dict[str, threading.Barrier] = {}
_entered: dict[str, dict[int, list[str]]] = {}


def _meet(name: str, what: str) -> None:
    """Wait for all ranks, as a collective does."""
    _entered.setdefault(name, {}).setdefault(current_worker().rank or 0, []).append(what)
    if name in _meetings:
        _meetings[name].wait(_WAIT_SECONDS)


@remote_class()
class Meeting:
    def __init__(self, name: str, ranks: int) -> None:
        self.name = name
        if ranks > 1:
            _meetings.setdefault(name, threading.Barrier(ranks))

    @remote_function(dispatch="slice_dp", collect="flatten", collective=True)
    def meet(self, rows: Any) -> Any:
        _meet(self.name, "meet")
        return rows * 2 if isinstance(rows, np.ndarray) else [row * 2 for row in rows]

    @remote_function(dispatch="slice", collect="none", collective=True)
    def sliced(self, rows: list[int]) -> list[int]:
        _meet(self.name, "sliced")
        return [row * 2 for row in rows]

    @remote_function(dispatch="all", collect="first", collective=True)
    def step(self) -> None:
        _meet(self.name, "step")

    @remote_function(dispatch="slice_dp", collect="flatten", timeout=0.3)
    def alone(self, rows: list[int]) -> list[int]:
        _meet(self.name, "alone")
        return rows


@pytest.fixture(autouse=True)
def _sessions() -> Iterator[None]:
    _meetings.clear()
    _entered.clear()
    with session("threads", groups=GROUPS):
        yield


def _meeting(name: str, group: str, **sizes: Any) -> Meeting:
    mesh = DeviceMesh.from_sizes(**sizes)
    return on(group, mesh).create(Meeting, name, mesh.world_size)


@pytest.mark.parametrize("sizes", [{"dp_size": 4}, {"fsdp_size": 4}, {"dp_size": 2, "tp_size": 2}, {"tp_size": 4}])
@pytest.mark.parametrize("ahead", [1, 6])
def test_all_ranks_enter_each_call(sizes: dict[str, Any], ahead: int) -> None:
    meeting = _meeting("m", "four", **sizes)
    for method in (meeting.meet, meeting.sliced):
        with stream([[i, i + 1, i + 2] for i in range(0, 12, 3)], method, rows=5, ahead=ahead) as batches:
            found = [get(batch) for batch in batches]
        assert found == [[0, 2, 4, 6, 8], [10, 12, 14, 16, 18], [20, 22]]
    assert len({tuple(calls) for calls in _entered["m"].values()}) == 1
    assert len(_entered["m"]) == 4


def test_stages_share_ranks_and_calls_of_the_loop_keep_one_order() -> None:
    first, second = _meeting("m", "two", dp_size=2), _meeting("n", "two", fsdp_size=2)
    with stream([[i] for i in range(12)], first.meet, second.meet, first.meet, rows=2, ahead=6) as batches:
        for batch in batches:
            first.step()
            assert len(get(batch)) == 2
            last = second.step()
    get(last)
    for calls in _entered.values():
        assert calls[0] == calls[1]


def test_a_deadline_in_a_collective_of_some_ranks_says_what_is_missing() -> None:
    meeting = _meeting("m", "four", dp_size=4)
    with stream([[1]], meeting.alone, ahead=2) as batches, pytest.raises(CallTimeoutError, match="collective=True"):
        list(batches)
    _meetings["m"].abort()


@pytest.mark.parametrize("options", [{"execute": "first"}, {"collective": 1}, {"collective": None}])
def test_options_that_contradict_it_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="collective"):
        remote_function(**{"collective": True, **options})
