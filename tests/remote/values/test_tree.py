"""One step down a nested value."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest

from twinkle_remote.values.tree import map_columns, map_parts

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
