"""JSON of a type is read whole: keys of any mapping, at any depth, and nothing that is unknown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from twinkle_http.plain.values import to_json, to_value


@dataclass
class Inner:
    by_step: dict[int, float] = field(default_factory=dict)


@dataclass
class Outer:
    inners: list[Inner]
    table: dict[str, Inner] = field(default_factory=dict)


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
    ("kind", "given"),
    [
        (Inner, {"by_step": {}, "by_stepp": {}}),
        (Outer, {"inners": [{"other": 1}]}),
        (Outer, {"inners": [], "table": {"x": {"by_steps": {}}}}),
        (list[Inner], [{}, {"x": 1}]),
        (dict[int, int], {"1": 2, "01": 3}),
        (dict[int, int], {"one": 2}),
        (dict[int, Inner], {"1": {"y": 2}}),
    ],
)
def test_what_is_unknown_is_refused(kind: Any, given: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        to_value(given, kind, lambda name: None)
