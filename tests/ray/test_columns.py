"""`reads=` and `adds=` on Ray: the bytes that move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import get, on, remote_class, remote_function, session, stats, stream

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

    @remote_function(dispatch="slice_dp", collect="flatten", reads="ids", adds="score")
    def grade(self, rows: dict[str, Any]) -> dict[str, Any]:
        return {**rows, "score": [one * 2 for one in rows["ids"]]}

    @remote_function(dispatch="slice_dp", collect="flatten", reads=("wide", "score"), adds="added")
    def annotate(self, rows: dict[str, Any]) -> dict[str, Any]:
        return {**rows, "added": rows["wide"] + np.array(rows["score"])[:, None]}

    @remote_function(dispatch="slice_dp", collect="flatten", reads=("score", "added"))
    def train(self, rows: dict[str, Any]) -> list[float]:
        return [float(added[0]) + score for added, score in zip(rows["added"], rows["score"], strict=True)]

    @remote_function(dispatch="slice_dp", collect="flatten", reads="ids")
    def peek(self, rows: dict[str, Any]) -> list[float]:
        return list(rows["other"])


@pytest.fixture(scope="module")
def stages(ray_cluster: None) -> Iterator[list[Any]]:
    names = ("sampler", "reward", "reference", "actor")
    with session("ray", groups=[DeviceGroup(name, 2, "CPU") for name in names]):
        yield [on(name, DeviceMesh.from_sizes(dp_size=2)).create(Stage) for name in names]


def fetched(method: str, since: int) -> int:
    return sum(one.bytes_fetched for one in stats()[since:] if one.method == f"Stage.{method}")


def test_each_column_crosses_once_to_each_process_that_reads_it(stages: list[Any]) -> None:
    sampler, reward, reference, actor = stages
    before = len(stats())
    made = sampler.make(list(range(_ROWS)))
    graded = reward.grade(made)
    noted = reference.annotate(graded)
    assert get(actor.train(noted)) == [4.0 * one for one in range(_ROWS)]
    assert fetched("grade", before) < 16 * 1024
    assert _ROWS * _ROW <= fetched("annotate", before) < (_ROWS + 1) * _ROW
    assert _ROWS * _ROW <= fetched("train", before) < (_ROWS + 1) * _ROW
    assert sum(one.driver_fetched for one in stats()[before:]) < 16 * 1024
    value = get(noted)
    assert list(value) == ["ids", "wide", "other", "score", "added"]
    assert value["score"] == [2 * one for one in range(_ROWS)]


def test_plain_arguments_are_sent_without_the_columns_that_are_not_read(stages: list[Any]) -> None:
    plain: dict[str, Any] = {"ids": [1, 2, 3, 4], "wide": np.zeros((4, _WIDTH)), "other": np.ones((4, _WIDTH))}
    before = len(stats())
    lazy = stages[1].grade(plain)
    plain["wide"][:] = 5
    graded = get(lazy)
    assert graded["score"] == [2, 4, 6, 8]
    assert graded["wide"].shape == (4, _WIDTH) and not graded["wide"].any()  # joined here, as it was at the call
    assert sum(one.driver_sent + one.bytes_fetched for one in stats()[before:]) < 32 * 1024


def test_a_column_that_is_not_read_is_an_error_that_says_so(stages: list[Any]) -> None:
    made = stages[0].make([1, 2, 3])
    for value in (made, get(made)):
        with pytest.raises(KeyError, match=r"reads.*'other'"):
            get(stages[1].peek(value))


def test_a_stream_reads_and_keeps_columns(stages: list[Any]) -> None:
    sampler, reward, reference, actor = stages
    before = len(stats())
    trained: list[float] = []
    with stream([[0, 1, 2, 3], [4, 5, 6, 7]], sampler.make, reward.grade, reference.annotate, ahead=8) as batches:
        for batch in batches:
            trained += get(actor.train(batch))
    assert sorted(trained) == [4.0 * one for one in range(_ROWS)]
    assert fetched("grade", before) < 64 * 1024
    assert _ROWS * _ROW <= fetched("annotate", before) < (_ROWS + 1) * _ROW
    assert _ROWS * _ROW <= fetched("train", before) < (_ROWS + 1) * _ROW
