"""JSON of a type is read whole: keys of any mapping, at any depth, and nothing that is unknown or of no type."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from pathlib import PurePath
from typing import Annotated, Any, TypedDict

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from twinkle_http.plain.values import JsonValueError, json_type, to_json, to_value


@dataclass
class Inner:
    by_step: dict[int, float] = field(default_factory=dict)


@dataclass
class Outer:
    inners: list[Inner]
    table: dict[str, Inner] = field(default_factory=dict)


class Packed(msgspec.Struct):
    table: dict[Any, Any]


class Options(TypedDict, total=False):
    steps: int


class Mixed(enum.Enum):
    """msgspec reads no enum of numbers and texts."""

    ONE = 1
    TWO = "b"


VALUES: list[tuple[Any, Any]] = [
    (dict[int, float], {1: 0.5, -20: 2.0}),
    (dict[float, int], {0.5: 1, 2.0: 3}),
    (dict[str, dict[int, list[dict[int, str]]]], {"a": {1: [{2: "b"}]}}),
    (list[dict[int, int]], [{1: 2}, {}]),
    (Mapping[int, int], {3: 4}),
    (tuple[dict[int, int], str], ({1: 2}, "x")),
    (dict[int, int] | None, {7: 8}),
    (Inner, Inner({3: 1.0})),
    (Outer, Outer([Inner({1: 2.0}), Inner()], {"x": Inner({5: 6.0})})),
    (dict[str, Any], {"1": [1, {"2": 3}]}),
]


@pytest.mark.parametrize(("kind", "value"), VALUES)
def test_what_is_written_is_read_again(kind: Any, value: Any) -> None:
    written = json.loads(to_json({"result": value}, lambda part: None))["result"]
    assert to_value(written, kind, lambda name: None) == value


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Inner, {"by_step": {}, "by_stepp": {}}),
        (Outer, {"inners": [{"other": 1}]}),
        (Outer, {"inners": [], "table": {"x": {"by_steps": {}}}}),
        (list[Inner], [{}, {"x": 1}]),
        (dict[int, int], {"1": 2, "01": 3}),
        (dict[int, int], {"one": 2}),
        (dict[int, Inner], {"1": {"y": 2}}),
        (Options, {"step": 2}),
        (Options, {"steps": 1, "step": 2}),
    ],
)
def test_what_is_unknown_is_refused(kind: Any, fields: Any) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        to_value(fields, kind, lambda name: None)
    assert not str(caught.value).rstrip().endswith("has")


@pytest.mark.parametrize(
    "within",
    [lambda one: one, lambda one: [1, {"x": one}], lambda one: Outer([], {"y": one}), lambda one: (Packed(one),)],
)
def test_keys_that_are_one_in_json_are_refused(within: Any) -> None:
    """A reader of the JSON would have one of the two values."""
    assert json.loads(to_json(within({1: "a", "2": "b"}), lambda part: None)) is not None
    for keys in ((1, "1"), (0.5, "0.5"), ("-7", -7)):
        with pytest.raises(JsonValueError, match="one key"):
            to_json(within(dict.fromkeys(keys, "a")), lambda part: None)


CHOICES: list[tuple[Any, Any]] = [
    *((kind, value) for kind, value in VALUES if Any not in getattr(kind, "__args__", ())),
    *((Mixed, one) for one in Mixed),
    *((Decimal, Decimal("1.10")), (bytes, b"ab"), (str, "2020-01-01"), (date, date(2020, 1, 1)), (float, 2.5)),
    *((list[int], [1, 2]), (list[list[int]], [[1]]), (tuple[int, ...], (1, 2)), (set[int], {1}), (type(None), None)),
]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(CHOICES), st.lists(st.sampled_from(CHOICES), min_size=1, max_size=3))
def test_a_union_has_the_value_of_the_only_member_that_takes_it(one: Any, others: Any) -> None:
    """It has what JSON has where a member is that; two others are refused, and no dict stands for a dataclass."""
    kind, value = one
    union: Any = Annotated[kind, "one"]
    for other, _ in others:
        union = union | other
    written = json.loads(to_json([value], lambda part: None))
    try:
        (made,) = to_value(written, json_type(list[union]), lambda name: None)
    except msgspec.ValidationError as refused:
        if "does not tell apart" in str(refused):
            return
        raise
    as_sent = made == written[0] and type(made) in (type(written[0]), float)  # 1 for a float, as everywhere
    assert as_sent or (made == value and type(made) is type(value))
    with pytest.raises(msgspec.ValidationError):
        to_value([{"no": {"such": "field"}}], json_type(list[union]), lambda name: None)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (Mixed, "TWO"),
        (Mixed, True),
        (Mixed | None, 2),
        (dict[Mixed, int], {"b": 1}),
        (dict[PurePath, int], {"b": 1}),
        (list[Inner | Options], [{"step": 1}]),
        (list[str] | list[list[int]], "ab"),
        (Decimal, 123456789.12345678),
        (set[Decimal], [0.1]),
    ],
)
def test_no_annotation_is_left_unchecked(kind: Any, given: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        to_value(given, json_type(kind), lambda name: None)


ARRAYS: list[Any] = [np.ndarray, torch.Tensor, NDArray[np.int64], NDArray[np.uint8]]
ARRAYS += [NDArray[np.float64], NDArray[np.bool_], NDArray[np.str_]]
_element = st.sampled_from([0, 1, -3, 300, 2**63, 2**64, True, False, 0.5, 2.0, 1e300, "7", "a", None])
_row = st.lists(_element, max_size=3) | st.lists(st.integers(0, 9), max_size=3)


def _alike(made: Any, sent: Any) -> bool:
    if isinstance(sent, list):
        return isinstance(made, list) and len(made) == len(sent) and all(map(_alike, made, sent))
    if sent is None:
        return isinstance(made, float) and made != made
    return made == sent and isinstance(made, bool) == isinstance(sent, bool)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(ARRAYS), _element | _row | st.lists(_row, max_size=3))
def test_an_array_has_the_elements_that_were_sent(kind: Any, sent: Any) -> None:
    try:
        made = to_value(sent, kind, lambda name: None)
    except msgspec.ValidationError:
        return
    rounded = isinstance(made, torch.Tensor) and made.is_floating_point()
    expected = torch.tensor(sent, dtype=torch.float64).float().tolist() if rounded and sent != [] else sent
    assert _alike(made.tolist(), expected), (kind, sent, made)


@pytest.mark.parametrize(("kind", "sent"), [(np.ndarray, [[1, 2], [3, 4]]), (NDArray[np.float32], [1, 0.5, None])])
def test_arrays_of_numbers_are_taken(kind: Any, sent: Any) -> None:
    assert _alike(to_value(sent, kind, lambda name: None).tolist(), sent)
