from __future__ import annotations

from itertools import product

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from twinkle_ray.weights.shards.memory import overlaps

SIZE = 40


@st.composite
def views(draw: st.DrawFn) -> tuple[int, list[int], list[int], str]:
    """A view of a small buffer: offset, sizes and strides in elements, and a dtype."""
    dtype = draw(st.sampled_from(["float32", "bfloat16"]))
    room = SIZE if dtype == "float32" else 2 * SIZE
    sizes = draw(st.lists(st.integers(1, 4), min_size=0, max_size=2))
    strides = [draw(st.integers(0, 5)) for _ in sizes]
    reach = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    return draw(st.integers(0, room - 1 - reach)), sizes, strides, dtype


def at(buffer: Tensor, view: tuple[int, list[int], list[int], str]) -> Tensor:
    offset, sizes, strides, dtype = view
    return buffer.view(getattr(torch, dtype)).as_strided(sizes, strides, offset)


def elements(view: tuple[int, list[int], list[int], str]) -> set[int]:
    """The bytes that a view's elements lie in."""
    offset, sizes, strides, dtype = view
    width = 4 if dtype == "float32" else 2
    found: set[int] = set()
    for where in product(*map(range, sizes)):
        first = (offset + sum(i * stride for i, stride in zip(where, strides, strict=True))) * width
        found.update(range(first, first + width))
    return found


@given(st.lists(views(), min_size=1, max_size=5))
@settings(max_examples=120, deadline=None)
def test_names_that_share_an_element_are_found_and_no_others(
    given_views: list[tuple[int, list[int], list[int], str]],
) -> None:
    buffer = torch.zeros(SIZE)
    found = overlaps({str(i): [at(buffer, view)] for i, view in enumerate(given_views)})
    for later, one in enumerate(given_views):
        expected = {str(i) for i, other in enumerate(given_views[:later]) if elements(one) & elements(other)}
        assert set(found.get(str(later), ())) - {str(later)} == expected
        expanded = any(size > 1 and stride == 0 for size, stride in zip(one[1], one[2], strict=True))
        assert (str(later) in found.get(str(later), ())) == expanded


def test_parts_of_a_fused_parameter_share_nothing() -> None:
    fused = torch.zeros(6, 8)
    assert overlaps({"q": [fused[:2]], "k": [fused[2:4]], "v": [fused[4:]]}) == {}
    assert overlaps({"gate": [fused[:, :4]], "up": [fused[:, 4:]]}) == {}
    assert overlaps({"gate": [fused[:, :4], fused[:, 3:]]}) == {"gate": ("gate",)}
    assert overlaps({"fused": [fused], "up": [fused[:, 4:]]}) == {"up": ("fused",)}
