from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from twinkle_ray.weights.boxes import Box
from twinkle_ray.weights.plan import disjoint

SHAPE = (4, 5, 3)


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    offset = tuple(draw(st.integers(0, size)) for size in SHAPE)
    return Box(offset, tuple(draw(st.integers(0, size - start)) for size, start in zip(SHAPE, offset, strict=True)))


def cells(box: Box) -> np.ndarray:
    held = np.zeros(SHAPE, dtype=int)
    held[box.inside(Box.whole(SHAPE))] = 1
    return held


@given(boxes(), boxes())
def test_intersection_and_difference_partition_a_box(a: Box, b: Box) -> None:
    common = a.intersect(b)
    total = sum((cells(part) for part in a.minus(b)), np.zeros(SHAPE, dtype=int))
    if common is not None:
        assert common.within(a) and common.within(b)
        assert (cells(common) == cells(a) * cells(b)).all()
        total = total + cells(common)
    else:
        assert (cells(a) * cells(b) == 0).all()
    assert (total == cells(a)).all()


@given(boxes(), st.integers(1, 40))
def test_slabs_partition_a_box_in_order(box: Box, elements: int) -> None:
    slabs = list(box.slabs(elements))
    assert all(slab.volume <= elements for slab in slabs)
    assert (sum((cells(slab) for slab in slabs), np.zeros(SHAPE, dtype=int)) == cells(box)).all()
    if box.volume:
        values = np.arange(60).reshape(SHAPE)
        order = [values[slab.inside(Box.whole(SHAPE))].ravel() for slab in slabs]
        assert (np.concatenate(order) == values[box.inside(Box.whole(SHAPE))].ravel()).all()


def test_a_scalar_is_one_element() -> None:
    scalar = Box.whole(())
    assert scalar.volume == 1
    assert scalar.intersect(scalar) == scalar
    assert scalar.minus(scalar) == []
    assert list(scalar.slabs(1)) == [scalar]
    assert str(Box((0, 2), (3, 4))) == "[0:3, 2:6]"


PLANE = (6, 5)


@st.composite
def flat_boxes(draw: st.DrawFn) -> Box:
    offset = [draw(st.integers(0, size - 1)) for size in PLANE]
    shape = [draw(st.integers(1, size - start)) for size, start in zip(PLANE, offset, strict=True)]
    return Box(tuple(offset), tuple(shape))


@given(st.lists(st.tuples(flat_boxes(), st.integers(0, 5)), max_size=7))
@settings(max_examples=120, deadline=None)
def test_every_element_is_in_one_region_with_all_its_holders(held: list[tuple[Box, int]]) -> None:
    given_boxes: dict[Box, list[int]] = {}
    holders = np.zeros((*PLANE, 6), dtype=bool)
    for box, rank in held:
        if rank not in given_boxes.setdefault(box, []):
            given_boxes[box] = sorted([*given_boxes[box], rank])
        holders[box.inside(Box.whole(PLANE))][..., rank] = True
    found = np.zeros((*PLANE, 6), dtype=int)
    count = np.zeros(PLANE, dtype=int)
    for region, ranks in disjoint(given_boxes).items():
        where = region.inside(Box.whole(PLANE))
        assert (count[where] == 0).all() and ranks == sorted(set(ranks))
        count[where] += 1
        for rank in ranks:
            found[where][..., rank] += 1
    assert (found == holders).all()
