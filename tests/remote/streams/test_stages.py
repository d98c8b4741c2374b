"""Stages: partials of remote functions, and functions whose body runs collectives."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import CallTimeoutError, Replicate, get, on, remote_class, remote_function, session, stats, stream
from twinkle_remote.context import current_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@remote_class()
class Stage:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def make(self, rows: list[int], by: int = 1) -> dict[str, Any]:
        return {"ids": [by * row for row in rows]}

    @remote_function(dispatch="slice_dp", collect="flatten", replicate=("scales",))
    def grade(self, scales: list[int], rows: dict[str, Any], name: str = "score", *, by: int = 1) -> dict[str, Any]:
        return {**rows, name: [scales[0] * by * one for one in rows["ids"]]}

    @remote_function(dispatch="slice_dp", collect="flatten", collective=True)
    def together(self, rows: dict[str, Any], by: int) -> dict[str, Any]:
        return {**rows, "last": [by * one for one in rows["ids"]]}

    @remote_function(dispatch="slice_dp", collect="flatten")
    def mark(self, marks: Any, rows: dict[str, Any]) -> dict[str, Any]:
        return {**rows, "mark": list(marks) * len(rows["ids"])}


@pytest.fixture(params=["local", "threads"])
def stages(request: pytest.FixtureRequest) -> Iterator[list[Any]]:
    with session(request.param, groups=[DeviceGroup(name, 2, "CPU") for name in ("a", "b")]):
        yield [on(name, DeviceMesh.from_sizes(dp_size=2)).create(Stage) for name in ("a", "b")]


PARTIALS: dict[str, Callable[[Any], Any]] = {
    "by place": lambda stage: partial(stage.grade, [5], by=2),
    "in a partial": lambda stage: partial(partial(stage.grade, [5], by=7), by=2),
    "marked": lambda stage: partial(stage.grade, Replicate([5]), by=2),
}


@pytest.mark.parametrize("ahead", [0, 6])
@pytest.mark.parametrize("how", PARTIALS)
def test_rows_and_columns_are_those_of_the_function(stages: list[Any], how: str, ahead: int) -> None:
    maker, other = stages
    source, before, found = [[0, 1, 2], [3], [4, 5]], len(stats()), []
    made = [partial(maker.make, by=3), PARTIALS[how](other), partial(other.together, by=4)]
    with stream(source, *made, ahead=ahead) as batches:
        for rows, batch in zip(source, batches, strict=True):
            ids = [3 * row for row in rows]
            assert get(batch) == {"ids": ids, "score": [10 * one for one in ids], "last": [4 * one for one in ids]}
            found += ids
    assert found == [3 * row for row in range(6)]
    assert "Stage.grade" in {one.method for one in stats()[before:]}, "a partial is a stage of workers"


@pytest.mark.parametrize(
    ("make", "kind", "word"),
    [
        (lambda stage: partial(stage.together), TypeError, "by"),
        (lambda stage: partial(stage.make, bye=1), TypeError, "bye"),
        (lambda stage: partial(stage.grade, scales=[5]), TypeError, "scales"),  # the rows come by place
        (lambda stage: partial(stage.make, rows=[1]), TypeError, "rows"),
        (lambda stage: partial(stage.mark, [5]), ValueError, r"Replicate\(value\)"),
        (lambda stage: partial(stage.mark, stage.make([1])), ValueError, r"Replicate\(value\)"),
        (lambda stage: partial(stage.make, by=[5]), ValueError, "by"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(
    stages: list[Any], make: Callable[[Any], Any], kind: type[Exception], word: str
) -> None:
    for ahead in (0, 4):
        with pytest.raises(kind, match=word):
            stream([[1]], make(stages[0]), ahead=ahead)


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
        return [row * 2 for row in rows]

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


@pytest.fixture
def meeting() -> Iterator[Callable[..., Meeting]]:
    def create(name: str, group: str, **sizes: Any) -> Meeting:
        mesh = DeviceMesh.from_sizes(**sizes)
        return on(group, mesh).create(Meeting, name, mesh.world_size)

    _meetings.clear()
    _entered.clear()
    with session("threads", groups=GROUPS):
        yield create


@pytest.mark.parametrize("sizes", [{"dp_size": 4}, {"fsdp_size": 4}, {"dp_size": 2, "tp_size": 2}, {"tp_size": 4}])
@pytest.mark.parametrize("ahead", [1, 6])
def test_all_ranks_enter_each_call(meeting: Callable[..., Meeting], sizes: dict[str, Any], ahead: int) -> None:
    four = meeting("m", "four", **sizes)
    for method in (four.meet, four.sliced):
        with stream([[i, i + 1, i + 2] for i in range(0, 12, 3)], method, rows=5, ahead=ahead) as batches:
            found = [get(batch) for batch in batches]
        assert found == [[0, 2, 4, 6, 8], [10, 12, 14, 16, 18], [20, 22]]
    assert len({tuple(calls) for calls in _entered["m"].values()}) == 1
    assert len(_entered["m"]) == 4


def test_stages_share_ranks_and_calls_of_the_loop_keep_one_order(meeting: Callable[..., Meeting]) -> None:
    first, second = meeting("m", "two", dp_size=2), meeting("n", "two", fsdp_size=2)
    with stream([[i] for i in range(12)], first.meet, second.meet, first.meet, rows=2, ahead=6) as batches:
        for batch in batches:
            first.step()
            assert len(get(batch)) == 2
            last = second.step()
    get(last)
    for calls in _entered.values():
        assert calls[0] == calls[1]


def test_a_deadline_in_a_collective_of_some_ranks_says_what_is_missing(meeting: Callable[..., Meeting]) -> None:
    four = meeting("m", "four", dp_size=4)
    with stream([[1]], four.alone, ahead=2) as batches, pytest.raises(CallTimeoutError, match="collective=True"):
        list(batches)
    _meetings["m"].abort()
