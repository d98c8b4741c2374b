"""One step down a nested value, and copies for receivers in the same process."""

from __future__ import annotations

import time
from collections import Counter, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from twinkle_remote.rows.plain import map_parts, map_record, snapshot

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
    assert map_record([MARK], walk, len) == 1
    assert map_record({"a": [MARK]}, walk) == {"a": ["new"]}


def test_a_copy_for_another_worker_has_no_graph_as_in_another_process() -> None:
    weight = torch.ones(2, requires_grad=True)
    given = snapshot({"loss": [weight * 2], "weight": weight, "fixed": weight.detach()})
    assert [given["loss"][0].requires_grad, given["weight"].requires_grad, given["fixed"].requires_grad] == [1, 1, 0]
    (given["loss"][0].sum() + given["weight"].sum()).backward()
    assert weight.grad is None


@pytest.mark.parametrize("value", [torch.Size((2, 3)), time.gmtime(0)], ids=["Size", "struct_time"])
def test_tuples_that_make_themselves_are_copied(value: tuple[int, ...]) -> None:
    fresh = snapshot(value)
    assert type(fresh) is type(value) and fresh == value


class Halfway:
    """An object that `copy` refuses after it has copied a part of it; pickle takes it if it may."""

    def __init__(self, part: Any, *, travels: bool) -> None:
        self.part, self.travels = part, travels

    def __deepcopy__(self, memo: dict[int, Any]) -> Halfway:
        memo[id(self.part)] = type(self.part)()  # a copy that is not filled yet
        raise RuntimeError

    def __reduce__(self) -> Any:
        if not self.travels:
            raise TypeError
        return _halfway, (self.part,)


def _halfway(part: Any) -> Halfway:
    return Halfway(part, travels=True)


class Around:
    """An object around another one."""

    def __init__(self, held: Any) -> None:
        self.held = held


@pytest.mark.parametrize("travels", [True, False])
def test_an_object_that_copy_refuses_is_copied_by_pickle_and_spoils_no_other(travels: bool) -> None:
    part = Counter("aab")
    first, other = snapshot([Halfway(part, travels=travels), [{1, 2}, Around(part)]])
    assert other[1].held == part and other[1].held is not part
    assert (first.part is part) is not travels and first.part == part
