from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from twinkle_ray.weights.boxes import Box
from twinkle_ray.weights.plan import disjoint

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
