"""Groups that share their nodes: each node takes its part of every group, on as few nodes as hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinkle_mesh import DeviceGroup
from twinkle_ray.cluster.nodes import Node
from twinkle_ray.placement.assign import BusyError, InfeasibleError, assign
from twinkle_ray.placement.colocate import check_colocate

if TYPE_CHECKING:
    from collections.abc import Sequence

PAIR = [("a", "b")]


def gpus(*totals: int, free: Sequence[int] | None = None) -> list[Node]:
    return [
        Node(str(index), f"node{index}", {"GPU": total}, {"GPU": have})
        for index, (total, have) in enumerate(zip(totals, free or totals, strict=True))
    ]


def placed(a: int, b: int, nodes: Sequence[Node]) -> tuple[list[int], list[int]]:
    found = assign([DeviceGroup("a", a, "GPU"), DeviceGroup("b", b, "GPU")], nodes, PAIR)
    return [one.node for one in found["a"]], [one.node for one in found["b"]]


def test_one_node_is_best_and_the_tightest_that_holds_both() -> None:
    assert placed(2, 2, gpus(8, 4, 3)) == ([1, 1], [1, 1])


def test_several_nodes_take_the_same_part_of_each() -> None:
    assert placed(4, 2, gpus(4, 4)) == ([0, 0, 1, 1], [0, 1])
    assert placed(5, 2, gpus(4, 4)) == ([0, 0, 0, 1, 1], [0, 1])
    apart = assign([DeviceGroup("a", 4, "GPU"), DeviceGroup("b", 2, "GPU")], gpus(4, 4))
    assert [[one.node for one in apart[name]] for name in "ab"] == [[0] * 4, [1] * 2]


def test_a_set_is_on_as_many_nodes_as_one_of_its_groups_asks_for() -> None:
    for sizes in ((None, 2), (2, None), (2, 2)):
        groups = [DeviceGroup(name, 4, "GPU", nodes=nodes) for name, nodes in zip("ab", sizes, strict=True)]
        found = assign(groups, gpus(8, 8), PAIR)
        assert [[one.node for one in found[name]] for name in "ab"] == [[0, 0, 1, 1]] * 2
    with pytest.raises(InfeasibleError, match="4 workers x 1 GPU"):
        assign(groups, gpus(8), PAIR)


def test_what_cannot_share_is_said() -> None:
    with pytest.raises(InfeasibleError, match="groups a, b"):
        placed(4, 1, gpus(4, 4))
    with pytest.raises(BusyError, match="share"):
        placed(4, 2, gpus(4, 4, free=(4, 1)))


@pytest.mark.parametrize(
    ("colocate", "error", "message"),
    [
        (["a", "b"], TypeError, "must hold sets of names"),
        ([("a", "c")], ValueError, "names 'c'; the groups are a, b, named, two, four"),
        ([("a", "b"), ("b", "a")], ValueError, "names 'b' twice"),
        ([("a", "named")], ValueError, "group 'named' names its devices"),
        (
            [("two", "four")],
            ValueError,
            "'two' has nodes=2 and group 'four' has nodes=4; groups of a set are on the same",
        ),
        ([("a", "four")], ValueError, "'four' has nodes=4 and group 'a' has 1 workers"),
    ],
)
def test_bad_sets(colocate: Any, error: type[Exception], message: str) -> None:
    groups = [DeviceGroup("a", 1, "GPU"), DeviceGroup("b", 1, "GPU"), DeviceGroup("named", [0], "GPU")]
    groups += [DeviceGroup("two", 4, "GPU", nodes=2), DeviceGroup("four", 4, "GPU", nodes=4)]
    with pytest.raises(error, match=message):
        check_colocate(colocate, groups)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 8), min_size=1, max_size=5), st.integers(1, 8), st.integers(1, 8))
def test_nodes_are_the_same_and_give_no_more_than_they_have(totals: list[int], a: int, b: int) -> None:
    try:
        of_a, of_b = placed(a, b, gpus(*totals))
    except InfeasibleError:
        return
    assert set(of_a) == set(of_b) and (len(of_a), len(of_b)) == (a, b)
    assert all(of_a.count(node) + of_b.count(node) <= has for node, has in enumerate(totals))
