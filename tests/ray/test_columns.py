"""`select` before a call and `join` after it on Ray: the bytes that move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import get, join, on, remote_class, remote_function, select, session, stats

if TYPE_CHECKING:
    from collections.abc import Iterator

_WIDTH = 64 * 1024
_ROW = _WIDTH * 8
_ROWS = 8


@remote_class()
class Stage:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def make(self, rows: list[int]) -> dict[str, Any]:
        return {"ids": rows, "wide": np.zeros((len(rows), _WIDTH)), "other": np.ones((len(rows), _WIDTH))}

    @remote_function(dispatch="slice_dp", collect="flatten")
    def grade(self, rows: dict[str, Any]) -> dict[str, Any]:
        return {"score": [one * 2 for one in rows["ids"]]}

    @remote_function(dispatch="slice_dp", collect="flatten")
    def annotate(self, rows: dict[str, Any]) -> dict[str, Any]:
        return {"added": rows["wide"] + np.array(rows["score"])[:, None]}

    @remote_function(dispatch="slice_dp", collect="flatten")
    def train(self, rows: dict[str, Any]) -> list[float]:
        return [float(added[0]) + score for added, score in zip(rows["added"], rows["score"], strict=True)]


@pytest.fixture(scope="module")
def stages(ray_cluster: None) -> Iterator[list[Any]]:
    names = ("sampler", "reward", "reference", "actor")
    with session("ray", groups=[DeviceGroup(name, 2, "CPU") for name in names]):
        yield [on(name, DeviceMesh.from_sizes(dp_size=2)).create(Stage) for name in names]


def with_score(reward: Any, rows: Any) -> Any:
    return join(rows, reward.grade(select(rows, "ids")))


def with_added(reference: Any, rows: Any) -> Any:
    return join(rows, reference.annotate(select(rows, "wide", "score")))


def fetched(method: str, since: int) -> int:
    return sum(one.bytes_fetched for one in stats()[since:] if one.method == f"Stage.{method}")


def test_each_column_crosses_once_to_each_process_that_reads_it(stages: list[Any]) -> None:
    sampler, reward, reference, actor = stages
    before = len(stats())
    made = sampler.make(list(range(_ROWS)))
    graded = with_score(reward, made)
    noted = with_added(reference, graded)
    assert get(actor.train(select(noted, "score", "added"))) == [4.0 * one for one in range(_ROWS)]
    assert fetched("grade", before) < 16 * 1024
    assert _ROWS * _ROW <= fetched("annotate", before) < (_ROWS + 1) * _ROW
    assert _ROWS * _ROW <= fetched("train", before) < (_ROWS + 1) * _ROW
    assert sum(one.driver_fetched for one in stats()[before:]) < 16 * 1024
    value = get(noted)
    assert list(value) == ["ids", "wide", "other", "score", "added"]
    assert value["score"] == [2 * one for one in range(_ROWS)]
