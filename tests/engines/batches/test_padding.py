"""Packs: the sequences of each are those of first fit decreasing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twinkle_engines.batches.columns import fit


@given(st.lists(st.integers(0, 12), max_size=40), st.integers(0, 9))
def test_packs_are_those_of_first_fit_decreasing(lengths: list[int], more: int) -> None:
    length = max(lengths, default=0) + more
    packs: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not lengths[i]:
            continue
        place = next((pack for pack in packs if sum(lengths[k] for k in pack) + lengths[i] <= length), None)
        if place is None:
            packs.append([i])
        else:
            place.append(i)
    assert fit(lengths, length) == [sorted(pack) for pack in packs]
