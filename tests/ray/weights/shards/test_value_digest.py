from __future__ import annotations

from itertools import product

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from twinkle_ray.weights.shards import value_digest
from twinkle_ray.weights.shards.box import Box
from twinkle_ray.weights.shards.value_digest import digest_values

DTYPES = ["float32", "bfloat16", "float16", "float8_e4m3fn", "int64", "float64", "complex64", "complex128", "bool"]


def filled(shape: tuple[int, ...], dtype: str, seed: int) -> Tensor:
    drawn = torch.randint(0, 200, shape, generator=torch.Generator().manual_seed(seed))
    return drawn.to(getattr(torch, dtype)) if dtype != "bool" else drawn > 100


def mixed(index: int, dim: int) -> int:
    """splitmix64, in whole numbers."""
    mask = (1 << 64) - 1
    value = (index + (dim << 48)) * 0x9E3779B97F4A7C15 & mask
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & mask
    value = (value ^ value >> 27) * 0x94D049BB133111EB & mask
    return value ^ value >> 31 | 1


def by_hand(block: Tensor) -> int:
    """The digest's definition, element by element; words of a value are signed, bytes are not."""
    total = 0
    for where in product(*map(range, block.shape)):
        flat = block[where].reshape(1)
        kind = {1: torch.uint8, 2: torch.int16}.get(block.itemsize, torch.int32)
        words = (torch.view_as_real(flat).flatten() if flat.is_complex() else flat).view(kind).tolist()
        row = 1
        for dim, i in enumerate(where[:-1], start=1):
            row *= mixed(i, dim)
        last = where[-1] if where else 0
        total += row * sum(word * mixed(last * len(words) + k, 0) for k, word in enumerate(words))
    return total % (1 << 64)


shapes = st.lists(st.integers(1, 6), max_size=3).map(tuple)


@given(shapes, st.sampled_from(DTYPES), st.integers(0, 99), st.integers(1, 40), st.data())
@settings(max_examples=80, deadline=None)
def test_blocks_sum_to_the_whole_however_it_is_cut(
    shape: tuple[int, ...], dtype: str, seed: int, chunk: int, data: st.DataObject
) -> None:
    whole = filled(shape, dtype, seed)
    box = Box.whole(shape)
    expected = by_hand(whole)
    parts = list(box.slabs(data.draw(st.integers(1, 20))))
    kept, value_digest._CHUNK = value_digest._CHUNK, chunk
    try:
        found = sum(int(digest_values(whole[part.inside(box)], part)) for part in parts)
    finally:
        value_digest._CHUNK = kept
    assert found % (1 << 64) == int(digest_values(whole, box)) % (1 << 64) == expected


@given(shapes.filter(bool), st.sampled_from(DTYPES), st.data())
@settings(max_examples=60, deadline=None)
def test_another_value_or_another_order_is_another_digest(
    shape: tuple[int, ...], dtype: str, data: st.DataObject
) -> None:
    whole, box = filled(shape, dtype, 3), Box.whole(shape)
    digest = int(digest_values(whole, box))
    other = whole.clone()
    where = data.draw(st.tuples(*(st.integers(0, size - 1) for size in shape)))
    other[where] = 0 if other[where] else 1
    assert int(digest_values(other, box)) != digest
    turned = whole[torch.arange(shape[0] - 1, -1, -1)]
    assert by_hand(turned) == by_hand(whole) or int(digest_values(turned, box)) != digest


def test_a_turned_sign_of_every_element_is_seen() -> None:
    whole = torch.randn(64, 64)
    assert int(digest_values(whole, Box.whole((64, 64)))) != int(digest_values(-whole, Box.whole((64, 64))))


def test_strides_and_far_offsets_do_not_matter() -> None:
    block = torch.randn(6, 70)
    for box in (Box((2, 5), (6, 70)), Box((1 << 40, 65_500), (6, 70))):
        expected = int(digest_values(block, box))
        assert int(digest_values(block.t().contiguous().t(), box)) == expected
        halves = box.slabs(210)
        assert sum(int(digest_values(block[half.inside(box)], half)) for half in halves) % (1 << 64) == expected % (
            1 << 64
        )
