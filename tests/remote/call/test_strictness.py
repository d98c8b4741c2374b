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
from twinkle_remote import CollectError, DispatchError, get, on, remote_class, remote_function, session
from twinkle_remote.call import whole_rows
from twinkle_remote.protocol.spec import FunctionSpec, returns_columns
from twinkle_remote.values.join import join, join_results
from twinkle_remote.values.reduce import reduce

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

GROUPS = [DeviceGroup("two", 2, "CPU"), DeviceGroup("other", 2, "CPU")]


@remote_class()
class Model:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def both(self, rows):  # type: ignore[no-untyped-def]  # what an annotation would say is what is tested
        return torch.zeros(len(rows)), torch.ones(len(rows))

    @remote_function(dispatch="slice_dp", collect="flatten")
    def scalars(self, rows: list[int]) -> Any:
        return sum(rows), len(rows)

    @remote_function(dispatch="slice_dp", collect="flatten")
    def told(self, rows: list[int]) -> tuple[int, ...]:
        return tuple(rows)

    @remote_function(dispatch="slice_dp", collect="flatten")
    def parts(self, rows: list[int]) -> tuple[list[int], list[int]] | None:
        return rows, [-row for row in rows]

    @remote_function(dispatch="slice_dp", collect="flatten")
    def layers(self, rows: list[int]) -> dict[str, Any]:
        return {"logits": torch.zeros(len(rows)), "hidden": (torch.zeros(len(rows)),) * 3}

    @remote_function(dispatch="slice_dp", collect="flatten")
    def take(self, rows: Any) -> Any:
        return rows

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
def test_parts_of_a_tuple_are_never_taken_for_rows(model: Model, count: int) -> None:
    rows = list(range(count))
    both = cast("Any", model).both
    other = on("other", DeviceMesh.from_sizes(dp_size=2)).create(Model)
    for made in (both(rows), model.scalars(rows), other.take(both(rows)), other.take(model.scalars(rows))):
        with pytest.raises(CollectError, match="rows or parts"):
            get(made)
    with pytest.raises(CollectError, match=r"number of rows|rows or parts"):
        get(model.layers(rows))
    assert get(model.told(rows)) == tuple(rows) and get(other.take(rows)) == rows
    assert get(model.parts(rows)) == (rows, [-row for row in rows])


@pytest.mark.parametrize(
    ("annotation", "columns"),
    [
        (tuple[int, ...], False),
        (tuple[int, str], True),
        ("tuple[int, str]", True),
        ("tuple[list[int], ...]", False),
        ("typing.Tuple[int, ...]", False),
        (tuple[int, str] | None, True),
        ("Sequence[int]", False),
        (list[int], None),
        ("Any", None),
        (tuple, None),
    ],
)
def test_annotations_say_what_the_elements_of_a_tuple_are(annotation: object, columns: bool | None) -> None:
    assert returns_columns(FunctionSpec(collect="flatten"), annotation).columns is columns


def test_names_in_split_stand_for_many_arguments(model: Model) -> None:
    got = get(model.named([1, 2], [3, 4], [5, 6], stop=["s", "t"], other=[7, 8]))
    assert got == [
        ([1, 2], ([3], [5]), {"stop": ["s", "t"], "other": [7]}),
        ([1, 2], ([4], [6]), {"stop": ["s", "t"], "other": [8]}),
    ]
    with pytest.raises(DispatchError, match=r"split= names .*no rows"):
        get(model.named([1, 2], 5))


def test_a_slice_that_divides_nothing_is_told_once(model: Model, caplog: pytest.LogCaptureFixture) -> None:
    whole_rows._warned.clear()
    caplog.set_level(logging.WARNING, "twinkle.remote")
    for _ in range(2):
        assert get(model.sliced([1, 2, 3])) == [1, 2, 3] and not caplog.records
        assert get(model.whole((1, 2))) == [1, 2, 1, 2] and not caplog.records
    for _ in range(2):
        assert get(model.sliced((1, 2))) == [1, 2, 1, 2]
        assert get(model.sliced(np.arange(2), 5)) == [0, 1, 0, 1]
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["Model.sliced"]
    assert "rows, a tuple" in caplog.text and "slice_dp" in caplog.text
    whole_rows._warned.clear()
    made = model.told([1, 2])
    assert get(model.sliced(made)) == [1, 2, 1, 2] and len(caplog.records) == 2
    whole_rows._warned.clear()


@pytest.mark.parametrize("collect", ["sum", "mean"])
def test_padding_meets_a_reduction_only_with_the_mask(collect: Any) -> None:
    for method in (lambda self, rows: 1, lambda self, rows, valid: 1):
        with pytest.raises(TypeError, match="valid"):
            remote_function(dispatch="slice_dp", uneven="pad", collect=collect)(method)
    remote_function(dispatch="slice_dp", uneven="pad", collect=collect)(lambda self, rows, valid=None: 1)
    remote_function(dispatch="slice_dp", uneven="pad", collect="flatten")(lambda self, rows: rows)


def _frame(values: Sequence[Any], **options: Any) -> pd.DataFrame:
    return pd.DataFrame({"x": values}, **options)


def _series(name: str) -> pd.Series[Any]:
    return pd.Series([1], name=name)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (np.array([1]), np.array(["x"])),
        (np.array([2**60 + 1]), np.array([0.5])),
        (np.array([2**63], "uint64"), np.array([-1])),
        (np.array([1]), np.array(["2026"], "M8[D]")),
        (np.array([10**8], "M8[D]"), np.array([1], "M8[ns]")),
        (np.array([(1,)], [("a", "i4")]), np.array([(1,)], [("b", "i4")])),
        (torch.tensor([2**30 + 1]), torch.tensor([0.5])),
        (torch.tensor([70000]), torch.tensor([0.5], dtype=torch.float16)),
        (torch.ones(2, 2).to_sparse(), torch.ones(2, 2)),
        (torch.nn.Parameter(torch.ones(2)), torch.ones(2)),
        (_frame([1]), _frame(["x"])),
        (_frame([2**60 + 1]), _frame([0.5])),
        (_frame(pd.Categorical(["a"])), _frame(pd.Categorical(["b"]))),
        (_frame([1], index=["k"]), _frame([1])),
        (_series("a"), _series("b")),
        (pd.Index([1], name="a"), pd.Index([2], name="b")),
        (pd.Categorical(["a"]), pd.Categorical(["b"])),
    ],
)
def test_types_that_meet_change_no_element(left: Any, right: Any) -> None:
    for values in ([left, right], [right, left]):
        with pytest.raises(CollectError, match=r"do not join|one type"):
            join(values)


@pytest.mark.parametrize(
    ("left", "right", "want"),
    [
        (np.array([1]), np.array([0.5]), "float64"),
        (np.array([1], "int8"), np.array([300], "int64"), "int64"),
        (np.array(["a"]), np.array(["bcd"]), "<U3"),
        (np.array([1]), np.array([None, "x"], dtype=object), "object"),
        (torch.tensor([1]), torch.tensor([0.5]), "torch.float32"),
        (torch.tensor([0.1], dtype=torch.float16), torch.tensor([0.1], dtype=torch.bfloat16), "torch.float32"),
    ],
)
def test_types_that_hold_all_elements_join(left: Any, right: Any, want: str) -> None:
    joined: Any = join([left, right])
    assert str(joined.dtype) == want and joined.tolist() == [*left.tolist(), *right.tolist()]


def test_default_indexes_go_on_and_own_labels_stay() -> None:
    first, rest = _frame([1, 2]), _frame([3])
    first.index.name = rest.index.name = "row"
    joined = join([first, rest])
    assert list(joined.index) == [0, 1, 2] and joined.index.name == "row"
    whole = _frame([1, 2, 3, 4])
    assert join([whole.iloc[:1], whole.iloc[1:]]).equals(whole)
    assert list(join([whole.iloc[2:], whole.iloc[:2]]).index) == [2, 3, 0, 1]
    assert list(join([whole[whole["x"] > 3], whole[whole["x"] < 2]]).index) == [3, 0]
    dated = _frame([1, 2, 3], index=pd.date_range("2026-01-01", periods=3, name="day"))
    assert join([dated.iloc[:1], dated.iloc[1:]]).equals(dated)
    described = _frame([1])
    described.attrs["unit"] = "kg"
    with pytest.raises(CollectError, match="attributes"):
        join([described, _frame([2])])


@pytest.mark.parametrize("number", [2.0, 1, True, 1j, np.float32(2), np.array(3), torch.tensor(4.0)])
def test_a_number_beside_rows_is_refused_also_where_it_is_equal(number: Any) -> None:
    for beside in ({"rows": [1], "loss": number}, {"in": {"loss": number}, "rows": [1]}):
        with pytest.raises(CollectError, match=r"loss'\]: flatten joins rows"):
            join_results([beside, beside], "result")
        assert join_results([beside], "result") is beside
    texts = {"rows": [1], "note": "n", "none": None}
    assert join_results([texts, texts], "result") == {"rows": [1, 1], "note": "n", "none": None}


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


def test_frames_are_reduced_row_by_row_or_refused() -> None:
    assert reduce("sum", [_frame([1, 2]), _frame([3, 4])], None, "result")["x"].tolist() == [4, 6]
    with pytest.raises(CollectError, match="indexes"):
        reduce("mean", [_frame([1, 2]), _frame([3, 4], index=[1, 2])], None, "result")


@pytest.mark.parametrize("valid", [[True, True, True, False], [True, True, False, False], [True] * 4])
def test_fillers_of_a_batch_weigh_nothing(valid: list[bool]) -> None:
    rows = [1.0, 2.0, 6.0, 100.0]
    batch = Batch(rows, valid=valid)
    kept = [row for row, own in zip(rows, valid, strict=True) if own]
    with session("threads", groups=GROUPS):
        trainer = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Trainer)
        other = on("other").create(Trainer)
        assert get(trainer.loss(batch)) == pytest.approx(sum(kept) / len(kept))
        assert get(other.look(trainer.loss(batch))) == [pytest.approx(sum(kept) / len(kept))] * 2
