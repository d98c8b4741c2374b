from __future__ import annotations

import itertools
import math

import hypothesis.strategies as st
from hypothesis import given, settings

from twinkle_mesh.layout.factors import merged, nested, split
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


@law
@given(shapes, st.integers(1, 12))
def test_a_dim_is_cut_where_arithmetic_allows(shape: list[int], inner: int) -> None:
    factors = merged([factor for dim in Layout.contiguous(shape).by_stride(range(len(shape))) for factor in [dim]])
    cut = split(factors, inner)
    total = math.prod(shape)
    assert (cut is not None) == (total % inner == 0)
    if cut is not None:
        assert [base + step for base in values(cut[0]) for step in values(cut[1])] == list(range(total))


def test_a_cut_across_factors_is_not_arithmetic() -> None:
    apart = ((3, 10), (2, 1))
    assert split(apart, 2) == (((3, 10),), ((2, 1),))
    assert split(apart, 6) == ((), apart)
    assert split(apart, 3) is None
    assert split(apart, 4) is None
    assert split((), 1) == ((), ())
    assert split((), 2) is None


def test_factors_that_continue_one_another_are_one() -> None:
    assert merged([(2, 4), (2, 2), (1, 9), (2, 1)]) == ((8, 1),)
    assert merged([(2, 8), (2, 1)]) == ((2, 8), (2, 1))


def test_only_nested_factors_can_be_searched() -> None:
    assert nested([(2, 3), (3, 1)])
    assert not nested([(3, 2), (2, 3)])
    assert not nested([(2, 1), (2, 1)])


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
