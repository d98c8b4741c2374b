from __future__ import annotations

import re
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from twinkle_mesh import DeviceMesh, Piece, balanced_slice, plan_transfer

law = settings(settings.get_profile("mesh"))


@law
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 9))
def test_pieces_carry_every_row_to_where_get_slice_wants_it(lengths: list[int], targets: int) -> None:
    rows = [[(source, row) for row in range(length)] for source, length in enumerate(lengths)]
    together = [row for held in rows for row in held]
    plan = plan_transfer(len(lengths), targets, lengths)
    assert len(plan) == targets
    for target, pieces in enumerate(plan):
        read = [row for piece in pieces for row in rows[piece.source][piece.start : piece.stop]]
        assert read == together[balanced_slice(len(together), targets, target)]
        assert all(0 <= piece.start < piece.stop <= lengths[piece.source] for piece in pieces)
    read = [rows[piece.source][row] for pieces in plan for piece in pieces for row in range(piece.start, piece.stop)]
    assert read == together


@law
@given(st.from_type(DeviceMesh), st.from_type(DeviceMesh), st.data())
def test_any_mesh_hands_over_to_any_other(source: DeviceMesh, target: DeviceMesh, data: st.DataObject) -> None:
    shares = source.data_world_size
    lengths = data.draw(st.lists(st.integers(0, 5), min_size=shares, max_size=shares))
    plan = plan_transfer(source, target, lengths)
    assert plan == plan_transfer(shares, target.data_world_size, lengths)
    sizes = [sum(piece.stop - piece.start for piece in pieces) for pieces in plan]
    total = sum(lengths)
    assert sizes == [s.stop - s.start for s in target.data_slices(total)]
    for rank in target.ranks:
        part = target.get_slice(total, rank)
        assert sizes[target.data_rank(rank)] == part.stop - part.start


@law
@given(st.integers(1, 9), st.integers(0, 60))
def test_equal_layouts_with_equal_splits_pass_through(ranks: int, total: int) -> None:
    lengths = [
        balanced_slice(total, ranks, rank).stop - balanced_slice(total, ranks, rank).start for rank in range(ranks)
    ]
    assert plan_transfer(ranks, ranks, lengths) == tuple(
        (Piece(rank, 0, length),) if length else () for rank, length in enumerate(lengths)
    )


def test_a_table() -> None:
    four, two = DeviceMesh.from_sizes(dp_size=4), DeviceMesh.from_sizes(dp_size=2, pp_size=2, tp_size=2)
    assert plan_transfer(four, two, [16] * 4) == (((0, 0, 16), (1, 0, 16)), ((2, 0, 16), (3, 0, 16)))
    assert plan_transfer(two, four, [3, 4]) == (((0, 0, 2),), ((0, 2, 3), (1, 0, 1)), ((1, 1, 3),), ((1, 3, 4),))
    assert plan_transfer(3, 2, [0, 5, 0]) == (((1, 0, 3),), ((1, 3, 5),))
    assert plan_transfer(2, 3, [0, 0]) == ((), (), ())
    sizes: Any = np.int64(2), np.array([3, 4])
    assert repr(plan_transfer(sizes[0], sizes[0], sizes[1])) == repr(plan_transfer(2, 2, [3, 4]))
    assert plan_transfer(1, 3, [1]) == (((0, 0, 1),), (), ())


@pytest.mark.parametrize(
    ("source", "target", "lengths", "said"),
    [
        (2, 2, [1], "lengths has 1 entries, but source has data_world_size=2; give 2 lengths"),
        (2, 2, [1, -1], "lengths=(1, -1) must be at least 0 each"),
        (1, 1, [2.0], "lengths=2.0 must be a whole number"),
        (1, 1, [True], "lengths=True must be a whole number"),
        (1.0, 1, [1], "source=1.0 must be a mesh or a data world size"),
        (True, 1, [1], "source=True must be a mesh or a data world size"),
        (1, 1, [1.5], "lengths=1.5 must be a whole number"),
        (0, 2, [], "source=0 must be a mesh or a data world size of at least 1"),
        (1, 0, [1], "target=0 must be"),
    ],
)
def test_errors(source: Any, target: Any, lengths: list[Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        plan_transfer(source, target, lengths)
