from __future__ import annotations

import itertools
import math

import hypothesis.strategies as st
from hypothesis import given, settings

from twinkle_mesh.layout.factors import merged
from twinkle_mesh.layout.layout import Layout

law = settings(settings.get_profile("mesh"))
shapes = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def values(factors: tuple[tuple[int, int], ...]) -> list[int]:
    return [sum(steps) for steps in itertools.product(*(range(0, n * step, step) for n, step in factors))]


@law
@given(shapes, st.integers(0, 9), st.randoms())
def test_arithmetic_is_found_behind_explicit_ranks(shape: list[int], offset: int, random: object) -> None:
    layout = Layout.contiguous(shape, offset)
    assert Layout.of_ranks(list(range(offset, offset + math.prod(shape))), shape).key == layout.key
    assert layout.highest == offset + math.prod(shape) - 1


@law
@given(shapes, st.data())
def test_any_order_of_the_dims_is_arithmetic(shape: list[int], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(shape))))
    factors = [Layout.contiguous(shape).factors[dim] for dim in order]
    ranks = [sum(steps) for steps in itertools.product(*map(values, factors))]
    found = Layout.of_ranks(ranks, [shape[dim] for dim in order])
    assert found.table is None
    assert list(found.ranks()) == ranks
    whole = Layout.of_ranks(ranks, [len(ranks)])
    assert whole.table is None
    assert whole.factors[0] == merged([factor for dim in factors for factor in dim])


@law
@given(st.lists(st.integers(0, 40), min_size=1, max_size=12, unique=True))
def test_irregular_ranks_are_kept(ranks: list[int]) -> None:
    layout = Layout.of_ranks(ranks, [len(ranks)])
    assert list(layout.ranks()) == ranks
    for place, rank in enumerate(ranks):
        assert layout.coords(rank) == [place]
        assert layout.rank([place]) == rank
    assert all(layout.coords(rank) is None for rank in set(range(-1, 50)) - set(ranks))


def test_stacked_layouts_share_no_rank() -> None:
    first, second = Layout.contiguous([2, 2]), Layout.contiguous([2, 2], 4)
    stacked = Layout.stacked([first, second])
    assert stacked is not None
    assert stacked.key == Layout.contiguous([2, 2, 2]).key
    backwards = Layout.stacked([second, first])
    assert backwards is not None
    assert list(backwards.ranks()) == [4, 5, 6, 7, 0, 1, 2, 3]
    assert Layout.stacked([first, Layout.contiguous([2, 2], 3)]) is None
    alone = Layout.stacked([first])
    assert alone is not None
    assert alone.shape == (1, 2, 2)
