from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twinkle_ray.weights.planning.layouts import Layouts
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
