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
