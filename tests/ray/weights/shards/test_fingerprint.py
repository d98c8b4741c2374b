from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn import Parameter

from twinkle_ray.weights import Shard
from twinkle_ray.weights.shards.fingerprint import Fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_ray.weights.shards.shard import Weights

BASE = torch.zeros(6, 6)
OWN = Parameter(BASE)


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"a": BASE, "b": BASE[2:]},
        lambda: {"a": OWN},
        lambda: {"a": OWN.detach()},
        lambda: {"a": Shard(BASE[:3], (6, 6), [0, 0]), "b": BASE},
        lambda: {"a": [Shard(BASE[:3], (6, 6), (0, 0)), Shard(BASE[3:], (6, 6), (3, 0))]},
        dict,
    ],
)
def test_the_same_memory_matches(make: Callable[[], Weights]) -> None:
    assert Fingerprint(make()).matches(make(), same_parameters=True)


OTHERS: list[Any] = [
    {"b": OWN},
    {"a": OWN, "b": OWN},
    {"a": torch.zeros(6, 6)},
    {"a": BASE.t()},
    {"a": BASE[:3]},
    {"a": BASE.view(torch.int32)},
    {"a": Shard(BASE, (12, 6), (0, 0))},
    {"a": [Shard(BASE, (6, 6), (0, 0))]},
    {"a": "no tensor"},
    ["a"],
]


@pytest.mark.parametrize("other", OTHERS)
def test_other_memory_or_another_layout_does_not(other: Any) -> None:
    first = Fingerprint({"a": OWN})
    assert not first.matches(other, same_parameters=False)
    if isinstance(other, dict):
        assert not Fingerprint(other).matches({"a": OWN}, same_parameters=False)


def test_another_place_of_a_shard_does_not() -> None:
    first = Fingerprint({"a": Shard(BASE, (12, 6), (0, 0))})
    assert not first.matches({"a": Shard(BASE, (12, 6), (6, 0))}, same_parameters=False)


def test_another_parameter_with_the_same_memory_matches_where_that_is_enough() -> None:
    for first, other in (
        (OWN, Parameter(OWN.detach())),
        (Shard(OWN, (6, 6), (0, 0)), Shard(Parameter(BASE), (6, 6), (0, 0))),
    ):
        found = Fingerprint({"a": first})
        assert found.matches({"a": other}, same_parameters=False)
        assert not found.matches({"a": other}, same_parameters=True)
        assert found.matches({"a": first}, same_parameters=True)
