"""Which node each worker goes to, and what is said when there is none."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinkle_mesh import DeviceGroup
from twinkle_ray.cluster.nodes import Node
from twinkle_ray.placement.assign import BusyError, DeviceAssignment, InfeasibleError, assign


def gpus(*totals: int, free: tuple[int, ...] | None = None) -> list[Node]:
    left = totals if free is None else free
    return [
        Node(f"id{i}", f"node{i}", {"CPU": 8, "GPU": total}, {"CPU": 8, "GPU": now})
        for i, (total, now) in enumerate(zip(totals, left, strict=True))
    ]


def nodes_of(assigned: object) -> list[int]:
    assert isinstance(assigned, list)
    return [one.node for one in assigned]


@pytest.mark.parametrize(
    ("totals", "sizes", "expected"),
    [
        ((8,), {"a": 4, "b": 4}, {"a": [0] * 4, "b": [0] * 4}),
        ((8, 8), {"a": 4, "b": 8}, {"a": [1] * 4, "b": [0] * 8}),  # the large one is not split for the small one's sake
        ((8, 4), {"a": 3}, {"a": [1] * 3}),  # the tightest node that holds all
        ((4, 8, 2), {"a": 13}, {"a": [0] * 4 + [1] * 8 + [2]}),  # as few nodes as possible, ranks in order of node
        ((2, 2, 2), {"a": 4, "b": 2}, {"a": [0, 0, 1, 1], "b": [2, 2]}),
    ],
)
def test_groups_stay_together(totals: tuple[int, ...], sizes: dict[str, int], expected: dict[str, list[int]]) -> None:
    found = assign([DeviceGroup(name, size, "GPU") for name, size in sizes.items()], gpus(*totals))
    assert {name: nodes_of(assigned) for name, assigned in found.items()} == expected


def test_a_workers_devices_are_on_one_node() -> None:
    found = assign([DeviceGroup("a", 6, "GPU", gpus_per_worker=2)], gpus(3, 4, 2))
    assert nodes_of(found["a"]) == [0, 1, 1]


def on(nodes: int | None, workers: int, per: int = 1, name: str = "a") -> DeviceGroup:
    return DeviceGroup(name, workers * per, "GPU", gpus_per_worker=per, nodes=nodes)


@pytest.mark.parametrize(
    ("groups", "totals", "expected"),
    [
        ([on(2, 4)], (8, 8), {"a": [0, 0, 1, 1]}),
        ([on(4, 4)], (8, 8, 8, 8), {"a": [0, 1, 2, 3]}),
        ([on(1, 4)], (2, 2, 4), {"a": [2] * 4}),
        ([on(2, 4)], (8, 1, 4, 2), {"a": [2, 2, 3, 3]}),  # the tightest nodes
        ([on(2, 2, 2)], (5, 3, 1), {"a": [0, 1]}),  # devices of a worker are on one node
        ([on(None, 4, name="b"), on(3, 3)], (4, 4, 4), {"a": [0, 1, 2], "b": [0, 0, 0, 1]}),  # shares are taken first
        ([on(2, 2, name="b"), on(2, 4)], (3, 2, 1), {"a": [0, 0, 1, 1], "b": [0, 2]}),  # and the larger ones before
    ],
)
def test_a_group_is_on_as_many_nodes_as_it_asks_for(
    groups: list[DeviceGroup], totals: tuple[int, ...], expected: dict[str, list[int]]
) -> None:
    found = assign(groups, gpus(*totals))
    assert {name: nodes_of(assigned) for name, assigned in found.items()} == expected


def test_named_devices_are_counted_from_the_first_node_on() -> None:
    groups = [
        DeviceGroup("a", [9, 2], "GPU"),
        DeviceGroup("b", 2, "GPU", visible_devices="8,3"),
        DeviceGroup("c", 4, "GPU"),
    ]
    found = assign(groups, gpus(8, 8))
    assert found["a"] == [DeviceAssignment(0, (2,)), DeviceAssignment(1, (1,))]
    assert found["b"] == [DeviceAssignment(0, (3,)), DeviceAssignment(1, (0,))]
    assert nodes_of(found["c"]) == [0] * 4 or nodes_of(found["c"]) == [1] * 4
    found = assign([DeviceGroup("a", [2, 3, 4, 5], "GPU", gpus_per_worker=2)], gpus(4, 2))
    assert found["a"] == [DeviceAssignment(0, (2, 3)), DeviceAssignment(1, (0, 1))]


@pytest.mark.parametrize(
    ("groups", "totals", "message"),
    [
        ([DeviceGroup("a", 9, "GPU")], (4, 4), "asks for 9 workers x 1 GPU, and no nodes hold them\n"),
        ([DeviceGroup("a", 4, "GPU", gpus_per_worker=4)], (3, 3), "node node1: 3 of 3 GPU free"),
        ([DeviceGroup("a", 1, "NPU")], (4,), "node node0: none of NPU"),
        ([DeviceGroup("a", [0, 8], "GPU")], (8,), r"names GPU \[8\], and the cluster has 8, counted from 0"),
        ([DeviceGroup("a", [1], "GPU"), DeviceGroup("b", [1, 2], "GPU")], (8,), "'a' and 'b' both name GPU 1"),
        ([DeviceGroup("a", [0, 1, 2, 3], "GPU", gpus_per_worker=2)], (3, 3), r"devices \[2, 3\] are on several nodes"),
        ([DeviceGroup("a", [5], "GPU", visible_devices="2,3")], (8,), "use 0 to 1"),
        ([DeviceGroup("a", 1, "CPU")], (), "the cluster has no nodes"),
        ([on(2, 8)], (8,), "'a' asks for 8 workers x 1 GPU on 2 nodes, and no nodes hold them\n"),
        ([on(3, 6)], (4, 4), "on 3 nodes, and no nodes hold them\n"),
        ([on(1, 6)], (4, 3, 3), "on 1 node, and no nodes hold them\n"),
    ],
)
def test_what_never_fits_is_said(groups: list[DeviceGroup], totals: tuple[int, ...], message: str) -> None:
    with pytest.raises(InfeasibleError, match=message):
        assign(groups, gpus(*totals))


def test_what_others_hold_is_busy() -> None:
    group = DeviceGroup("a", 4, "GPU")
    with pytest.raises(BusyError) as caught:
        assign([group], gpus(4, 2, free=(1, 2)))
    assert str(caught.value) == (
        "busy: group 'a' asks for 4 workers x 1 GPU, and no nodes hold them\n"
        "  asked: a = 4 workers x 1 GPU\n"
        "  node node0: 1 of 4 GPU free\n"
        "  node node1: 2 of 2 GPU free"
    )
    with pytest.raises(BusyError, match="node0"):
        assign([DeviceGroup("a", [0, 1], "GPU")], gpus(4, 2, free=(1, 2)))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=5),
    st.lists(
        st.tuples(st.integers(1, 8), st.sampled_from([1, 2, 4]), st.sampled_from([None, 1, 2, 3])),
        min_size=1,
        max_size=4,
    ),
)
def test_no_node_gives_more_than_it_has(totals: list[int], asked: list[tuple[int, int, int | None]]) -> None:
    groups = [on(nodes, workers * (nodes or 1), per, f"g{i}") for i, (workers, per, nodes) in enumerate(asked)]
    try:
        found = assign(groups, gpus(*totals))
    except InfeasibleError:
        return
    used = [0] * len(totals)
    for group in groups:
        assigned = found[group.name]
        assert len(assigned) == group.num_workers
        assert [one.node for one in assigned] == sorted(one.node for one in assigned)
        if group.nodes is not None:
            assert list(Counter(nodes_of(assigned)).values()) == [group.num_workers // group.nodes] * group.nodes
        for one in assigned:
            used[one.node] += group.gpus_per_worker
    assert all(taken <= has for taken, has in zip(used, totals, strict=True))
