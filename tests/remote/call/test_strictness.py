"""Calls that cannot tell what is meant: refused in the same way for every number of rows, or told once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd
import pytest
import torch

from twinkle_data import Batch
from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import CollectError, DispatchError, Replicate, get, on, remote_class, remote_function, session
from twinkle_remote.call import collect
from twinkle_remote.rows.concat import concat, concat_results
from twinkle_remote.rows.reduce import reduce

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

GROUPS = [DeviceGroup("two", 2, "CPU"), DeviceGroup("other", 2, "CPU")]


@remote_class()
class Model:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def scalars(self, rows: list[int]) -> Any:
        return sum(rows), len(rows)

    @remote_function(dispatch="slice_dp", collect="flatten")
    def told(self, rows: list[int]) -> tuple[int, ...]:
        return tuple(rows)

    @remote_function(dispatch="slice_dp", collect="flatten")
    def array(self, rows: list[int]) -> Any:
        return np.array(rows)

    @remote_function(dispatch="slice_dp", collect="flatten")
    def parts(self, rows: list[int]) -> tuple[list[int], list[int]] | None:
        return rows, [-row for row in rows]

    @remote_function(dispatch="slice_dp", collect="flatten")
    def take(self, rows: Any) -> Any:
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten")
    def held(self, holder: Any, rows: Any = ()) -> list[int]:
        return list(holder.rows)

    @remote_function(dispatch="slice", collect="flatten")
    def sliced_held(self, holder: Any) -> list[int]:
        return list(holder.rows)

    @remote_function(dispatch="slice", collect="flatten")
    def sliced(self, rows: Any, replicated: Any = None) -> list[Any]:
        return list(rows)

    @remote_function(dispatch="slice", collect="flatten", replicate=("rows",))
    def whole(self, rows: Any) -> list[Any]:
        return list(rows)

    @remote_function(dispatch="slice_dp", collect="none", split=("extra", "options"), replicate=("stop",))
    def named(self, first: Any, *extra: Any, **options: Any) -> Any:
        return first, extra, options


@remote_class()
class Trainer:
    @remote_function(dispatch="slice_dp", collect="mean")
    def loss(self, batch: Any) -> float:
        rows = [row for row, kept in zip(batch, batch.valid, strict=True) if kept]
        return sum(rows) / len(rows) if rows else 1e9

    @remote_function(dispatch="all", collect="none")
    def look(self, value: Any) -> Any:
        return value


@pytest.fixture
def model() -> Iterator[Model]:
    with session("threads", groups=GROUPS):
        yield on("two", DeviceMesh.from_sizes(dp_size=2)).create(Model)


@pytest.mark.parametrize("count", range(1, 8))
def test_a_tuple_is_a_record_of_parts(model: Model, count: int) -> None:
    rows = list(range(count))
    parts = (rows, [-row for row in rows])
    other = on("other", DeviceMesh.from_sizes(dp_size=2)).create(Model)
    for made in (model.parts(rows), other.take(model.parts(rows)), other.take(parts)):
        assert get(made) == parts
    for wrong in (model.told(rows), model.scalars(rows)):
        with pytest.raises(CollectError, match=r"has none|number of rows|by column"):
            get(wrong)


class Holder:
    def __init__(self, rows: list[int]) -> None:
        self.rows = rows


def test_an_object_of_an_unknown_class_is_not_doubled(model: Model) -> None:
    one = Holder([1, 2])
    unknown: Any = model
    for how in ("held", "sliced_held"):
        with pytest.raises(DispatchError, match=r"Holder: whether it holds rows .*Replicate"):
            get(getattr(unknown, how)(one))
        assert get(getattr(unknown, how)(Replicate(one))) == [1, 2, 1, 2]
    assert get(unknown.held(one, [7, 8])) == [1, 2, 1, 2]  # the other argument is divided
    assert Model.__new__(Model).held(one) == [1, 2]  # an object of no session


def test_names_in_split_stand_for_many_arguments(model: Model) -> None:
    got = get(model.named([1, 2], [3, 4], [5, 6], stop=["s", "t"], other=[7, 8]))
    assert got == [
        ([1, 2], ([3], [5]), {"stop": ["s", "t"], "other": [7]}),
        ([1, 2], ([4], [6]), {"stop": ["s", "t"], "other": [8]}),
    ]
    with pytest.raises(DispatchError, match=r"split= names .*no rows"):
        get(model.named([1, 2], 5))


def test_a_slice_that_divides_nothing_is_told_once(model: Model, caplog: pytest.LogCaptureFixture) -> None:
    collect._warned.clear()
    caplog.set_level(logging.WARNING, "twinkle.remote")
    for _ in range(2):
        assert get(model.sliced([1, 2, 3])) == [1, 2, 3] and not caplog.records
        assert get(model.whole([1, 2])) == [1, 2, 1, 2] and not caplog.records
    for _ in range(2):
        assert get(model.sliced(np.arange(1, 3))) == [1, 2, 1, 2]
        assert get(model.sliced(np.arange(2), 5)) == [0, 1, 0, 1]
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["Model.sliced"]
    assert "rows, a ndarray" in caplog.text and "slice_dp" in caplog.text
    collect._warned.clear()
    made = cast("Any", model).array([1, 2])
    assert get(model.sliced(made)) == [1, 2, 1, 2] and len(caplog.records) == 2
    collect._warned.clear()


def _frame(values: Sequence[Any], **options: Any) -> pd.DataFrame:
    return pd.DataFrame({"x": values}, **options)


def _series(name: str) -> pd.Series[Any]:
    return pd.Series([1], name=name)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (np.array([1]), np.array(["x"])),
        (np.array([1]), np.array([0.5])),
        (np.array([1], "int8"), np.array([300], "int64")),
        (np.array([1]), np.array([None, "x"], dtype=object)),
        (torch.tensor([1]), torch.tensor([0.5])),
        (torch.tensor([0.1], dtype=torch.float16), torch.tensor([0.1], dtype=torch.bfloat16)),
        (np.array([2**60 + 1]), np.array([0.5])),
        (np.array([2**63], "uint64"), np.array([-1])),
        (np.array([1]), np.array(["2026"], "M8[D]")),
        (np.array([10**8], "M8[D]"), np.array([1], "M8[ns]")),
        (np.array([(1,)], [("a", "i4")]), np.array([(1,)], [("b", "i4")])),
        (torch.tensor([2**30 + 1]), torch.tensor([0.5])),
        (torch.tensor([70000]), torch.tensor([0.5], dtype=torch.float16)),
        (torch.nn.Parameter(torch.ones(2)), torch.ones(2)),
        (_frame([1]), _frame(["x"])),
        (_frame([2**60 + 1]), _frame([0.5])),
        (_frame(pd.Categorical(["a"])), _frame(pd.Categorical(["b"]))),
        (_series("a"), _series("b")),
    ],
)
def test_other_types_do_not_join(left: Any, right: Any) -> None:
    for values in ([left, right], [right, left]):
        with pytest.raises(CollectError, match=r"do not join|one type"):
            concat(values)


def test_texts_join_at_any_length() -> None:
    joined = concat([np.array(["a"]), np.array(["bcd"])])
    assert str(joined.dtype) == "<U3" and joined.tolist() == ["a", "bcd"]


def test_labels_are_data() -> None:
    whole = _frame([1, 2, 3, 4])
    assert concat([whole.iloc[:1], whole.iloc[1:]]).equals(whole)
    assert list(concat([whole.iloc[2:], whole.iloc[:2]]).index) == [2, 3, 0, 1]
    assert list(concat([_frame([1, 2]), _frame([3])]).index) == [0, 1, 0]
    dated = _frame([1, 2, 3], index=pd.date_range("2026-01-01", periods=3, name="day"))
    assert concat([dated.iloc[:1], dated.iloc[1:]]).equals(dated)


@pytest.mark.parametrize("number", [2.0, 1, True, 1j, np.float32(2), np.array(3), torch.tensor(4.0)])
def test_a_number_beside_rows_is_refused_also_where_it_is_equal(number: Any) -> None:
    for beside in ({"rows": [1], "loss": number}, {"in": {"loss": number}, "rows": [1]}):
        with pytest.raises(CollectError, match=r"loss'\]: flatten joins rows"):
            concat_results([beside, beside], "result")
        assert concat_results([beside], "result") is beside
    texts = {"rows": [1], "note": "n", "none": None}
    assert concat_results([texts, texts], "result") == {"rows": [1, 1], "note": "n", "none": None}


@pytest.mark.parametrize(
    "values",
    [[np.float64(2), 1.0], [1.0, np.float32(2)], [np.int8(100), 100], [torch.tensor(2.0), 1], [True, np.float64(0.5)]],
)
@pytest.mark.parametrize("weights", [None, [1.0, 3.0]])
def test_numbers_of_libraries_meet_those_of_python(values: list[Any], weights: list[float] | None) -> None:
    numbers = [float(value) for value in values]
    shares = weights or [1.0, 1.0]
    total = sum(number * share for number, share in zip(numbers, shares, strict=True))
    assert reduce("sum", [{"x": value} for value in values], weights, "result")["x"] == total
    assert reduce("mean", values, weights, "result") == total / sum(shares)


def test_rows_of_frames_are_not_added_up() -> None:
    for how in ("sum", "mean"):
        with pytest.raises(CollectError, match=f"which have no {how}"):
            reduce(how, [_frame([1, 2]), _frame([3, 4])], None, "result")


@pytest.mark.parametrize("valid", [[True, True, True, False], [True, True, False, False], [True] * 4])
def test_fillers_of_a_batch_weigh_nothing(valid: list[bool]) -> None:
    rows = [1.0, 2.0, 6.0, 100.0]
    batch = Batch(rows, indices=range(4), valid=valid)
    kept = [row for row, own in zip(rows, valid, strict=True) if own]
    with session("threads", groups=GROUPS):
        trainer = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Trainer)
        other = on("other").create(Trainer)
        assert get(trainer.loss(batch)) == pytest.approx(sum(kept) / len(kept))
        assert get(other.look(trainer.loss(batch))) == [pytest.approx(sum(kept) / len(kept))] * 2
