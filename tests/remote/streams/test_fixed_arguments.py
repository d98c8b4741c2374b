"""Stages that are a `functools.partial` of a remote function: its rules of rows and columns hold as without one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import Replicate, get, on, remote_class, remote_function, session, stats, stream

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


class Own(partial):  # type: ignore[type-arg]  # a subclass, which Python does not make flat
    pass


@pytest.fixture(scope="module", params=["local", "threads"])
def stages(request: pytest.FixtureRequest) -> Iterator[list[Any]]:
    with session(request.param, groups=[DeviceGroup(name, 2, "CPU") for name in ("a", "b")]):
        yield [on(name, DeviceMesh.from_sizes(dp_size=2)).create(Stage) for name in ("a", "b")]


PARTIALS: dict[str, Callable[[Any], Any]] = {
    "by place": lambda stage: partial(stage.grade, [5], by=2),
    "in a partial": lambda stage: partial(partial(stage.grade, [5], by=7), by=2),
    "in a partial of its own kind": lambda stage: Own(Own(stage.grade, [5], by=7), by=2, name="score"),
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
