"""The stored form of values of a row type: rows are cut by it, not column by column."""

from __future__ import annotations

from twinkle.engines import Rollouts
from twinkle_ray.objects.chunks import cut, fold, unfold


def test_rows_of_a_row_type_are_not_cut_by_column() -> None:
    ids = [[i] * (20_000 + i) for i in range(6)]
    rollouts = Rollouts(ids, counts=[1, 3, 0, 2], prompts=[str(i) for i in range(4)])
    stored = fold({"made": rollouts})
    assert unfold(stored)[0]["made"] == rollouts
    for start in range(5):
        for stop in range(start, 5):
            assert unfold(stored, range(start, stop))[0]["made"] == rollouts[start:stop]
            assert unfold(cut(stored, start, stop))[0]["made"] == rollouts[start:stop]
