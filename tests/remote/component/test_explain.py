"""The table of a call."""

from __future__ import annotations

from typing import Any

import pytest

from twinkle_mesh import DeviceMesh
from twinkle_remote import Replicate, explain, on, remote_class, remote_function

pytestmark = pytest.mark.usefixtures("threads")


def largest(results: list[Any], device_mesh: DeviceMesh | None) -> Any:
    return max(results)


@remote_class()
class Actor:
    @remote_function(dispatch="slice_dp", collect="sum")
    def update(self, batch: Any, stop: Any = None, scale: float = 1.0) -> int:
        return len(batch)

    @remote_function(execute="first")
    def first(self) -> None: ...

    @remote_function(dispatch="slice_dp", collect="flatten")
    def rows(self, batch: Any) -> Any:
        return batch

    @remote_function(collect=largest)
    def best(self) -> int:
        return 1


def test_the_table() -> None:
    actor = on("four", DeviceMesh.from_sizes(dp_size=2, tp_size=2)).create(Actor)
    told = explain(actor.update, {"ids": [1, 2, 3], "tag": "x"}, Replicate(["</s>"]), scale=0.5)
    assert str(told).splitlines() == [
        "Actor.update on four",
        "rank  coordinate  batch      stop              scale  read",
        "0     dp=0 tp=0   dict[0:2]  list, all 1 rows  0.5    yes",
        "1     dp=0 tp=1   dict[0:2]  list, all 1 rows  0.5",
        "2     dp=1 tp=0   dict[2:3]  list, all 1 rows  0.5    yes",
        "3     dp=1 tp=1   dict[2:3]  list, all 1 rows  0.5",
        "collect: ranks 0, 2: the sum of their values",
    ]
    assert [row.rows for row in told.rows] == [2, 2, 1, 1]


def test_lazy_arguments_and_other_collects() -> None:
    actor = on("two").create(Actor)
    told = explain(actor.update, actor.rows([1, 2, 3]))
    assert [row.arguments["batch"] for row in told.rows] == ["its rows of a lazy result"] * 2
    assert explain(actor.best).collect == "what largest makes of them"
    assert str(explain(actor.first)).splitlines()[-1] == "collect: ranks 0: its value"
    long = explain(actor.update, list(range(100_000)), stop="x" * 500)
    assert max(map(len, str(long).splitlines())) < 120
