"""What is told of the rows of a batch stays with the batch."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import Lazy, RowsInfo, get, on, remote_class, remote_function, rows_info, session, stream, submit
from twinkle_remote.streams.batch_info import _told

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


def test_each_lazy_batch_tells_of_its_own_rows() -> None:
    with session("threads", groups=[DeviceGroup("two", 2, "CPU")]):
        maker = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Maker)
        with stream([[4, 5, 6, 7]] * 3, maker.make, rows=2, ahead=4) as batches:
            kept = []
            for batch in batches:
                assert rows_info(batch) is batches.info
                batches.publish()
                kept.append(batch)
        told = [rows_info(batch) for batch in kept]
        assert [list(info.indices) for info in told] == [[at, at + 1] for at in range(0, 12, 2)]
        assert [info.epoch for info in told] == [0] * 6
        assert all(begun <= ended for info in told for begun, ended in zip(info.begun, info.ended, strict=True))
        assert get(kept[0]) == [4, 5]
        other = submit(maker.make, [1])
        with pytest.raises(ValueError, match="nothing is told of this lazy result"):
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
    before = len(_told)
    with stream([[1], [2]], lambda rows: Rows(rows)) as batches:
        for batch in batches:
            assert isinstance(rows_info(batch), RowsInfo)
    del batch
    gc.collect()
    assert len(_told) == before
    with stream([[1], [2]]) as lists, pytest.raises(ValueError, match="nothing is told of this list"):
        rows_info(next(lists))
