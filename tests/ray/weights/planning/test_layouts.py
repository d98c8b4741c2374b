from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from twinkle_ray.weights.planning.layouts import Layouts, disjoint
from twinkle_ray.weights.shards.box import Box
from twinkle_ray.weights.shards.specs import RankSpecs, TensorSpec

BLOCKS = [(), (Box((0,), (4,)),), (Box((4,), (4,)),), (Box((0,), (4,)), Box((4,), (4,)))]


@st.composite
def sides(draw: st.DrawFn) -> list[RankSpecs]:
    names = [f"t{i}" for i in range(5)]
    return [
        tuple(
            TensorSpec(name, "float32", (8,), draw(st.sampled_from(BLOCKS)), name)
            for name in draw(st.sampled_from([names, names[:3], names[::-1]]))
        )
        for _ in range(draw(st.integers(1, 4)))
    ]


@given(sides())
def test_tensors_have_one_number_only_if_every_rank_has_the_same_blocks_of_them(side: list[RankSpecs]) -> None:
    layouts = Layouts(side)
    held = {
        spec.name: [{other.name: other.boxes for other in row}.get(spec.name) for row in side]
        for row in side
        for spec in row
    }
    for first in held:
        for second in held:
            if layouts.number(first) == layouts.number(second):
                assert held[first] == held[second]
            elif all({first, second} <= {spec.name for spec in row} for row in side):
                assert held[first] != held[second]
        expected = {
            box: [rank for rank, of_rank in enumerate(held[first]) if box in (of_rank or ())]
            for boxes in held[first]
            for box in boxes or ()
        }
        assert layouts.holders(first) == expected


SHAPE = (6, 5)


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    offset = [draw(st.integers(0, size - 1)) for size in SHAPE]
    shape = [draw(st.integers(1, size - start)) for size, start in zip(SHAPE, offset, strict=True)]
    return Box(tuple(offset), tuple(shape))


@given(st.lists(st.tuples(boxes(), st.integers(0, 5)), max_size=7))
@settings(max_examples=120, deadline=None)
def test_every_element_is_in_one_region_with_all_its_holders(held: list[tuple[Box, int]]) -> None:
    given_boxes: dict[Box, list[int]] = {}
    holders = np.zeros((*SHAPE, 6), dtype=bool)
    for box, rank in held:
        if rank not in given_boxes.setdefault(box, []):
            given_boxes[box] = sorted([*given_boxes[box], rank])
        holders[box.inside(Box.whole(SHAPE))][..., rank] = True
    found = np.zeros((*SHAPE, 6), dtype=int)
    count = np.zeros(SHAPE, dtype=int)
    for region, ranks in disjoint(given_boxes).items():
        where = region.inside(Box.whole(SHAPE))
        assert (count[where] == 0).all() and ranks == sorted(set(ranks))
        count[where] += 1
        for rank in ranks:
            found[where][..., rank] += 1
    assert (found == holders).all()


def test_boxes_that_do_not_overlap_stay_as_they_are() -> None:
    shards = {Box((2 * i, 0), (2, 5)): [i, i + 3] for i in range(3)}
    assert disjoint(shards) == shards
    assert disjoint({Box((), ()): [1, 0]}) == {Box((), ()): [1, 0]}
