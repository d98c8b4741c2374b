"""`reads=` and `adds=` of remote functions: what a function sees, what is kept of its result, and what is refused."""

from __future__ import annotations

import asyncio
import pickle
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
import torch

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import (
    Lazy,
    Replicate,
    as_completed,
    current_worker,
    explain,
    get,
    join,
    on,
    remote_class,
    remote_function,
    select,
    session,
    submit,
    take,
)
from twinkle_remote.errors import CollectError, DispatchError, TwinkleError, UnreadColumnError
from twinkle_remote.protocol import component_of
from twinkle_remote.values.left_out import LeftOut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True)
class Rows:
    ids: Any
    scores: Any = None
    wide: Any = None


@remote_class()
class Stage:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def same(self, rows: Any) -> Any:
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten", replicate=("how",), reads=("ids",))
    def use(self, rows: Any, how: Callable[[Any], Any]) -> Any:
        return how(rows)

    @remote_function(
        dispatch="slice_dp", collect="flatten", reads=lambda wide=False: ("ids", "wide") if wide else "ids"
    )
    def names(self, rows: Any, wide: bool = False) -> list[str]:
        return [f"{sorted(name for name in rows if not isinstance(rows[name], LeftOut))}"] * len(rows["ids"])

    @remote_function(dispatch="slice_dp", collect="flatten", reads="ids", adds="score")
    def grade(self, rows: dict[str, Any], by: int = 2) -> dict[str, Any]:
        return {**rows, "score": [by * one for one in rows["ids"]], "ids": [0] * len(rows["ids"])}

    @remote_function(dispatch="slice_dp", collect="flatten", adds=lambda column: (column, "rank"))
    async def annotate(self, rows: dict[str, Any], column: str) -> dict[str, Any]:
        await asyncio.sleep(0)
        ranks = [current_worker().rank or 0] * len(rows["ids"])
        return {**rows, column: torch.tensor(rows["ids"]) * 2.0, "rank": ranks}

    @remote_function(dispatch="slice_dp", collect="flatten", replicate=("how",), adds="score")
    def wrong(self, rows: Any, how: Callable[[Any], Any]) -> Any:
        return how(rows)

    @remote_function(dispatch="slice", split=("rows",), collect="flatten", reads="ids", adds="score", balance=True)
    def split(self, scale: list[int], rows: dict[str, Any]) -> dict[str, Any]:
        return {"score": [scale[0] * one for one in rows["ids"]]}


def rows(n: int) -> dict[str, Any]:
    return {"ids": list(range(n)), "wide": np.arange(n * 3.0).reshape(n, 3), "note": "same"}


@pytest.fixture(scope="module", params=["no session", "local", "threads"])
def stage(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "no session":
        yield Stage()
    elif request.param == "local":
        with session("local"):
            yield Stage()
    else:
        with session("threads", groups=[DeviceGroup("a", 4, "CPU")]):
            yield on("a", DeviceMesh.from_sizes(dp_size=2, tp_size=2)).create(Stage)


@pytest.fixture
def sessions(stage: Any) -> Any:
    """The stage, where there is a session."""
    if component_of(stage) is None:
        pytest.skip("without a session there are no lazy results")
    return stage


@pytest.fixture(params=["plain", "lazy"])
def given(request: pytest.FixtureRequest, stage: Any) -> Callable[[Any], Any]:
    return stage.same if request.param == "lazy" else lambda value: value


USES: list[Callable[[Any], Any]] = [
    lambda rows: rows["wide"],
    lambda rows: rows.get("wide"),
    lambda rows: rows["wide"].sum(),
    lambda rows: rows["wide"][0],
    lambda rows: [len(rows["wide"])],
    lambda rows: list(rows["wide"]),
    lambda rows: [0 in rows["wide"]],
    lambda rows: [bool(rows.get("wide"))],
    lambda rows: rows["wide"] + 1,
    lambda rows: 1 + rows["wide"],
    lambda rows: rows["wide"] == 1,
    lambda rows: [str(rows["wide"])],
    lambda rows: [f"{rows['wide']}"],
    lambda rows: [hash(rows["wide"])],
    lambda rows: [float(rows["wide"])],
    lambda rows: rows["wide"](),
    lambda rows: np.asarray(rows["wide"]),
    lambda rows: torch.cat([rows["wide"], rows["wide"]]),
    lambda rows: torch.nn.functional.relu(rows["wide"]),
    lambda rows: rows,
    lambda rows: {**rows},
    lambda rows: [{**rows}],
    lambda rows: list(rows.values())[1],
    lambda rows: take(rows, [0]),
    lambda rows: copy(rows),
    lambda rows: deepcopy(rows),
    lambda rows: pickle.loads(pickle.dumps(rows)),
]


@pytest.mark.parametrize("use", USES)
def test_the_use_of_a_column_that_is_not_read_is_an_error(stage: Any, given: Any, use: Callable[[Any], Any]) -> None:
    with pytest.raises(KeyError, match=r"reads") as raised:
        get(stage.use(given(rows(4)), use))
    assert isinstance(raised.value, UnreadColumnError | TwinkleError)


def test_columns_that_are_read_are_as_without_the_word(stage: Any, given: Any) -> None:
    assert get(stage.use(given(rows(5)), lambda rows: [one + 1 for one in rows["ids"]])) == [1, 2, 3, 4, 5]
    assert get(stage.use(given({"ids": [1, 2]}), lambda rows: rows)) == {"ids": [1, 2]}  # nothing is left out
    assert (
        get(stage.use(given(rows(3)), lambda rows: [sorted(rows)] * len(rows["ids"]))) == [["ids", "note", "wide"]] * 3
    )
    asked = get(stage.use(given(rows(3)), lambda rows: [("wide" in rows, "more" in rows)] * len(rows["ids"])))
    assert asked == [(True, False)] * 3
    with pytest.raises(KeyError, match="more"):
        get(stage.use(given(rows(3)), lambda rows: rows["more"]))


def test_a_dataclass_keeps_its_type_and_refuses_its_other_fields(stage: Any, given: Any) -> None:
    value = Rows([1, 2, 3], [4, 5, 6], np.zeros((3, 2)))
    assert get(stage.use(given(value), lambda rows: [isinstance(rows, Rows)] * len(rows.ids))) == [True] * 3
    with pytest.raises(KeyError, match="reads"):
        get(stage.use(given(value), lambda rows: list(rows.scores)))


def test_a_column_that_is_none_is_none_where_it_is_not_read(stage: Any, given: Any) -> None:
    for value in ({"ids": [1, 2], "wide": None}, Rows([1, 2])):
        found = get(stage.use(given(value), _wide))
        assert found == [None, None]


def _wide(rows: Any) -> list[Any]:
    ids, wide = (rows["ids"], rows["wide"]) if isinstance(rows, dict) else (rows.ids, rows.wide)
    return [wide for _ in ids]


def test_rows_are_counted_where_no_column_that_is_read_has_some(stage: Any, given: Any) -> None:
    value = {"wide": np.zeros((4, 2)), "note": "same"}
    with pytest.raises(KeyError, match="reads"):
        get(stage.use(given(value), lambda rows: rows["wide"]))
    with pytest.raises(KeyError, match="ids"):
        get(stage.use(given(value), lambda rows: rows["ids"]))


def test_a_frame_has_all_columns_because_it_cannot_hold_a_mark(stage: Any, given: Any) -> None:
    frame = pd.DataFrame({"ids": [1, 2, 3], "wide": [0.5, 1.5, 2.5]})
    assert get(stage.use(given(frame), lambda rows: list(map(int, rows["ids"])))) == [1, 2, 3]
    assert get(stage.use(given(frame), lambda rows: list(rows["wide"]))) == [0.5, 1.5, 2.5]
    assert get(stage.use(given(frame), lambda rows: rows)).equals(frame)


def test_the_columns_may_depend_on_other_arguments(stage: Any, given: Any) -> None:
    assert get(stage.names(given(rows(2)))) == ["['ids']"] * 2
    assert get(stage.names(given(rows(2)), wide=True)) == ["['ids', 'wide']"] * 2


def test_added_columns_are_joined_to_the_argument(stage: Any, given: Any) -> None:
    graded = stage.grade(given(rows(5)), by=3)
    value = get(graded)
    assert list(value) == ["ids", "wide", "note", "score"]
    assert (value["ids"], value["score"]) == ([0, 1, 2, 3, 4], [0, 3, 6, 9, 12])  # other changes are not kept
    assert np.array_equal(value["wide"], rows(5)["wide"])
    noted = stage.annotate(graded, "ref")
    again = get(asyncio.run(awaited(noted)) if asyncio.iscoroutine(noted) else noted)
    assert list(again) == ["ids", "wide", "note", "score", "ref", "rank"]
    assert again["ref"].tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]
    assert get(stage.names(again)) == ["['ids']"] * 5
    assert get(stage.grade(graded, 1))["score"] == [0, 1, 2, 3, 4]  # a later one wins a name


async def awaited(coroutine: Any) -> Any:
    return await coroutine


def test_no_rows_and_one_row_are_rows(stage: Any, given: Any) -> None:
    for n in (0, 1):
        assert get(stage.grade(given(rows(n))))["score"] == [0] * n


def test_named_arguments_are_found_by_the_order_of_parameters(stage: Any, given: Any) -> None:
    value = get(stage.split(rows=given(rows(3)), scale=[5]))
    assert value["score"] == [0, 5, 10]
    assert list(value) == ["ids", "wide", "note", "score"]


@pytest.mark.parametrize(
    ("how", "kind", "word"),
    [
        (lambda rows: rows, KeyError, "'score'"),
        (lambda rows: {"score": [1]}, CollectError, "rows"),
        (lambda rows: {"score": 1}, CollectError, "no rows"),
        (lambda rows: [1, 2], TypeError, "columns"),
        (lambda rows: None, TypeError, "columns"),
        (lambda rows: Rows(rows["ids"]), KeyError, "'score'"),
        (lambda rows: pd.DataFrame({"score": rows["ids"]}), TypeError, "join"),
    ],
)
def test_a_result_that_does_not_add_is_an_error(
    stage: Any, given: Any, how: Any, kind: type[Exception], word: str
) -> None:
    with pytest.raises(kind, match=word):
        get(stage.wrong(given(rows(6)), how))


def test_what_has_no_columns_is_refused_by_name(stage: Any, given: Any) -> None:
    for call in (partial(stage.use, how=len), stage.grade):
        with pytest.raises(TypeError, match=r"(reads|adds)=") as raised:
            get(call(given([1, 2, 3])))
        assert "list" in str(raised.value)
    with pytest.raises(DispatchError, match="adds="):
        get(stage.grade(None))


def test_options_that_cannot_work_are_refused_at_decoration() -> None:
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"dispatch": "all", "reads": "ids"}, ValueError, "divided"),
        ({"dispatch": "slice", "adds": "ids"}, ValueError, "divided"),
        ({"dispatch": "slice_dp", "collect": "none", "adds": "ids"}, ValueError, "flatten"),
        ({"dispatch": "slice_dp", "collect": "flatten", "uneven": "pad", "adds": "ids"}, ValueError, "uneven"),
        ({"dispatch": "slice_dp", "reads": ()}, ValueError, "reads"),
        ({"dispatch": "slice_dp", "reads": 3}, ValueError, "reads"),
        ({"dispatch": "slice_dp", "reads": lambda loss, /: loss}, TypeError, "place"),
    ]
    for options, kind, word in cases:
        with pytest.raises(kind, match=word):
            remote_function(**options)
    with pytest.raises(TypeError, match="beta"):

        class One:
            @remote_function(dispatch="slice_dp", reads=lambda beta: "ids")
            def step(self, rows: Any, loss: str) -> None: ...

    with pytest.raises(TypeError, match="generator"):

        class Two:
            @remote_function(dispatch="slice_dp", collect="flatten", adds="ids")
            def step(self, rows: Any) -> Iterator[Any]:
                yield rows


def test_a_rule_that_does_not_fit_the_call_is_an_error() -> None:
    class Own:
        @remote_function(dispatch="slice_dp", collect="flatten", reads=lambda loss: loss)
        def by_option(self, rows: Any, **options: Any) -> list[int]:
            return list(rows["ids"])

        @remote_function(dispatch="slice_dp", collect="flatten", reads=lambda rows: "ids")
        def by_itself(self, rows: Any) -> list[int]:
            return list(rows["ids"])

    assert Own().by_option(rows(2), loss="ids") == [0, 1]
    with pytest.raises(TypeError, match="reads="):
        Own().by_option(rows(2))
    with pytest.raises(TypeError, match="reads="):
        Own().by_itself(rows(2))
    with pytest.raises(ValueError, match="reads="):
        Own().by_option(rows(2), loss=3)


def test_a_result_of_joined_columns_is_one_call(sessions: Any) -> None:
    stage = sessions
    made = submit(stage.grade, submit(stage.same, rows(4)))
    assert isinstance(made, Lazy)
    assert "Stage.grade" in repr(made)
    made.cancel()  # it may be done
    with pytest.raises(ValueError, match="as_completed"):
        as_completed(submit(stage.grade, rows(4)))
    with pytest.raises(DispatchError, match="adds="):
        submit(stage.grade, Replicate(rows(4)))
    with pytest.raises(DispatchError, match="lazy"):
        submit(stage.grade, {"ids": submit(stage.same, [1, 2]), "wide": [1, 2]})
    parts = join(submit(stage.grade, rows(4)), {"more": [1, 2, 3, 4]})
    assert get(select(take(parts, [3, 0]), "score", "more")) == {"score": [6, 0], "more": [4, 1]}
    text = str(explain(stage.grade, rows(4)))
    assert "reads 'ids'" in text
    assert "adds 'score'" in text
