"""Tails: equal steps, balanced rows, fillers that are masked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinkle_data.order.tails import check_batch_size, rows_of_step, share, steps_left


@given(st.integers(1, 500), st.integers(1, 40))
def test_shares_cover_every_row_once(rows: int, world: int) -> None:
    short = [share(rows, world, rank, "short") for rank in range(world)]
    padded = [share(rows, world, rank, "pad") for rank in range(world)]
    for shares in (short, padded):
        assert [row for own in shares for row in range(own.start, own.stop)] == list(range(rows))
    assert not any(own.fillers for own in short)
    assert {own.stop - own.start + len(own.fillers) for own in padded} == {-(-rows // world)}
    assert all(0 <= filler < rows for own in padded for filler in own.fillers)


@given(st.integers(0, 300), st.integers(1, 40), st.sampled_from(["drop", "short", "pad"]))
def test_steps_are_what_rows_make(left: int, batch_size: int, tail: str) -> None:
    steps, rest = 0, left
    while rows := rows_of_step(rest, batch_size, tail):  # type: ignore[arg-type]  # one of the three
        steps, rest = steps + 1, rest - rows
    assert steps == steps_left(left, batch_size, tail)  # type: ignore[arg-type]  # one of the three
    assert rest == (left % batch_size if tail == "drop" else 0)


def test_batch_sizes_are_checked() -> None:
    check_batch_size(8, 4)
    with pytest.raises(ValueError, match=r"batch_size=6 .*data_world_size=4; use 4 or 8"):
        check_batch_size(6, 4)
    with pytest.raises(ValueError, match="; use 4"):
        check_batch_size(3, 4)
    with pytest.raises(ValueError, match="must be at least 1"):
        check_batch_size(0, 1)
