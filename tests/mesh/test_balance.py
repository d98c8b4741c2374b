from __future__ import annotations

import re

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from twinkle_mesh import balanced_slice
from twinkle_mesh.balance import Slices

law = settings(settings.get_profile("mesh"))


@law
@given(st.integers(0, 500), st.integers(1, 40))
def test_the_first_remainder_parts_get_one_more(total: int, parts: int) -> None:
    rows = [list(range(total))[balanced_slice(total, parts, index)] for index in range(parts)]
    assert [row for part in rows for row in part] == list(range(total))
    assert [len(part) for part in rows] == [total // parts + (index < total % parts) for index in range(parts)]
    slices = Slices(total, parts)
    assert list(slices) == [balanced_slice(total, parts, index) for index in range(parts)]
    assert slices == list(slices)
    assert slices[-1] == slices[parts - 1]
    assert slices[1:] == tuple(slices)[1:]
    assert hash(slices) == hash(Slices(total, parts))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((-1, 2, 0), "total_length=-1 must be at least 0"),
        ((4, 0, 0), "parts=0 must be at least 1"),
        ((4, 2, 2), "index=2 is outside [0, 1], the 2 parts"),
        ((4, 2, -1), "index=-1 is outside [0, 1]"),
    ],
)
def test_errors(arguments: tuple[int, int, int], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        balanced_slice(*arguments)


def test_slices_end() -> None:
    slices = Slices(4, 2)
    assert slices != 3
    assert repr(slices) == "Slices(total=4, parts=2)"
    with pytest.raises(IndexError, match="index 2"):
        slices[2]
