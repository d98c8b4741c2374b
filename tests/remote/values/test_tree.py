"""One step down a nested value."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from twinkle_remote.values.tree import is_plain, map_columns, map_parts

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Part:
    left: Any
    right: Any


MARK = object()


def walk(value: Any) -> Any:
    return "new" if value is MARK else map_parts(value, walk)


@pytest.mark.parametrize("make", [lambda x: [1, [x]], lambda x: (1, (x,)), lambda x: {"a": {"b": x}}])
def test_parts_change_at_any_depth_and_what_does_not_change_stays_itself(make: Any) -> None:
    value, other = make(MARK), make(object())
    assert walk(value) == make("new") and value == make(MARK)
    assert walk(other) is other


@pytest.mark.parametrize("kind", [Pair, Part])
def test_named_parts_keep_their_type(kind: Any) -> None:
    value = kind([MARK], 2)
    assert walk(value) == kind(["new"], 2) and type(walk(value)) is kind
    assert value.left == [MARK]


def test_leaves_are_values_without_parts() -> None:
    assert map_parts(7, walk, str) == "7"
    assert map_columns([MARK], walk, len) == 1
    assert map_columns({"a": [MARK]}, walk) == {"a": ["new"]}


class Own(dict[str, int]):
    pass


ROW = {"text": "a", "ids": [1, 2], "score": 0.5, "more": {"x": (None, True), "empty": []}}


@pytest.mark.parametrize(
    "values", [[], [1, "a", None], [ROW] * 3, [(1, 2), [3]], [[[[[1]]]]], (ROW, 1), [{}], [[], {}]]
)
def test_plain_values_at_any_depth(values: Any) -> None:
    assert is_plain(values)


@pytest.mark.parametrize("odd", [Part(1, 2), Own(x=1), np.zeros(2), object(), iter([]), {1}, range(3), np.int64(1)])
@pytest.mark.parametrize("at", range(5))
def test_one_other_value_is_found_anywhere(odd: Any, at: int) -> None:
    places: list[Any] = [
        [1, odd],
        [ROW, {**ROW, "text": odd}],
        [{"ids": [1, odd]}],
        [ROW, [(odd,)]],
        [{"a": {"b": odd}}],
    ]
    assert not is_plain(places[at])


def test_what_contains_itself_or_is_deep_is_not_plain() -> None:
    circle: list[Any] = [1]
    circle.append(circle)
    row: dict[str, Any] = {}
    row["self"] = row
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    assert not any(is_plain(value) for value in ([circle], [row], deep))
