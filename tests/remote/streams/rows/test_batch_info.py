"""The info of the rows of a batch stays with the batch."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import Lazy, RowsInfo, get, on, remote_class, remote_function, rows_info, session, stream, submit
from twinkle_remote.streams.rows.batch_info import _infos

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass
class Rows:
    values: Sequence[int]


@remote_class()
class Maker:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def make(self, rows: list[int]) -> list[int]:
        return rows

    @remote_function(collect="first")
    def columns(self) -> Rows:
        return Rows([1])


@remote_class()
class Caster:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def rows(self, rows: list[int]) -> list[int]:
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten")
    def mapping(self, rows: list[int]) -> dict[str, list[int]]:
        return {"row": rows}

    @remote_function(dispatch="slice_dp", collect="flatten")
    def array(self, rows: list[int]) -> np.ndarray:
        return np.array(rows)


def test_each_lazy_batch_tells_of_its_own_rows() -> None:
    with session("threads", groups=[DeviceGroup("two", 2, "CPU")]):
        maker = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Maker)
        with stream([[4, 5, 6, 7]] * 3, maker.make, rows=2, ahead=4) as batches:
            kept = []
            for batch in batches:
                batches.publish()
                kept.append(batch)
        told = [rows_info(batch) for batch in kept]
        assert [list(info.indices) for info in told] == [[at, at + 1] for at in range(0, 12, 2)]
        assert [info.epoch for info in told] == [0] * 6
        assert all(begun <= ended for info in told for begun, ended in zip(info.begun, info.ended, strict=True))
        assert get(kept[0]) == [4, 5]
        other = submit(maker.make, [1])
        with pytest.raises(ValueError, match="lazy result"):
            rows_info(other)
        assert submit(maker.columns).values == [1]


def test_lazy_batches_have_it_as_an_attribute_and_other_lazies_that_of_their_value() -> None:
    with session("threads", groups=[DeviceGroup("two", 2, "CPU")]):
        maker = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Maker)
        for ahead in (0, 4):
            with stream([[4, 5]], maker.make, ahead=ahead) as batches:
                for batch in batches:
                    assert isinstance(batch, Lazy)
                    assert batch.info is batches.info is rows_info(batch)
        with pytest.raises(AttributeError, match="info"):
            assert submit(maker.make, [1]).info


def test_values_of_this_process_are_remembered_while_they_exist() -> None:
    before = len(_infos)
    with stream([[1], [2]], lambda rows: Rows(rows)) as batches:
        for batch in batches:
            assert isinstance(rows_info(batch), RowsInfo)
    del batch
    gc.collect()
    assert len(_infos) == before


@pytest.mark.parametrize("mode", ["local", "threads"])
def test_one_way_tells_of_any_batch_in_every_mode(mode: Literal["local", "threads"]) -> None:
    with session(mode, groups=[DeviceGroup("two", 2, "CPU")]):
        maker = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Caster)
        remote: list[list[Any]] = [[maker.rows], [maker.mapping], [maker.array], [maker.array, list]]
        plain: list[list[Any]] = [[], [list], [tuple], [np.array], [Rows]]
        before = len(_infos)
        for stages, ahead, rows in product([*remote, *plain], (0, 2), (None, 2)):
            with stream([[4, 5, 6, 7], [8, 9]], *stages, ahead=ahead, rows=rows) as batches:
                seen = 0
                for batch in batches:
                    told = rows_info(batch)
                    assert told is batches.info, (stages, ahead, rows)
                    assert list(told.indices) == list(range(seen, seen + len(told.indices)))
                    seen += len(told.indices)
                assert seen == 6
        del batch
        gc.collect()
        assert len(_infos) == before


def test_what_has_no_weak_references_is_kept_until_the_next_batch() -> None:
    source = [[1], [2], [3]]
    before = len(_infos)
    with stream(source) as batches:
        first, second = next(batches), next(batches)
        assert second is source[1]
        assert list(rows_info(second).indices) == [1]
        with pytest.raises(ValueError, match=r"stream\.info"):
            rows_info(first)
        with pytest.raises(ValueError, match="this list"):
            rows_info([2])  # equal, but not the batch
        with stream(stream([second])) as outer:  # the same object goes through both
            told = rows_info(next(outer))
            assert list(told.indices) == [0]
    with pytest.raises(ValueError, match="nothing is known"):
        rows_info(second)
    left = stream(source)
    next(left)
    del left, outer
    gc.collect()
    assert len(_infos) == before
