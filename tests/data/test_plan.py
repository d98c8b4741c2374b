"""Steps of a run far inside of an epoch, and packs within their budget; test_programs.py has runs of both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinkle_data import DataLoader
from twinkle_data.order import DatasetOrder
from twinkle_data.plan import Plan, packed
from twinkle_mesh import DeviceMesh, use_rank


def test_a_billion_samples_start_at_once() -> None:
    plan = Plan(DatasetOrder(10**9, 3, shuffle=True), 1024, 8, drop_last=True)
    step = next(plan.steps(5, 999_000_064, 3))
    assert len(set(step.indices)) == 128
    assert plan.left(5, 999_000_064) == (10**9 - 999_000_064) // 1024


@given(st.lists(st.integers(1, 40), min_size=1, max_size=100), st.integers(1, 6), st.integers(40, 90))
@settings(max_examples=200, deadline=None)
def test_what_fits_is_divided_within_the_budget(tokens: list[int], packs: int, budget: int) -> None:
    found = packed(tokens, packs, budget)
    rows = sum(map(len, found))
    assert rows >= min(len(tokens), packs)
    assert sorted(row for pack in found for row in pack) == list(range(rows))
    assert all(sum(tokens[row] for row in pack) <= budget for pack in found)
    assert packed(tokens[:rows], packs, budget) == found


def test_packs_are_even_where_that_fits() -> None:
    assert packed([9, 1, 8, 2], 2, 20) == [[0, 1], [2, 3]]
    assert [len(pack) for pack in packed([3] * 12, 4, 100)] == [3, 3, 3, 3]


TOKENS = [(index * 37) % 50 + 1 for index in range(300)]
PACKED = [{"input_ids": [index] * count} for index, count in enumerate(TOKENS)]


def packs_of(**options: Any) -> DataLoader[Any]:
    return DataLoader(PACKED, **{"batch_size": 64, "max_tokens": 100, "drop_last": False, "shuffle": True, **options})


def test_the_driver_has_one_pack_for_each_data_rank() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=3, tp_size=2)
    whole = [[pack.indices for pack in batch] for batch in packs_of(device_mesh=mesh)]
    assert all(len(batch) == 3 for batch in whole)
    for rank in mesh.collect_ranks:
        with use_rank(rank):
            own = packs_of(device_mesh=mesh)
            assert len(own) == len(whole)
            packs = [batch[0].indices for batch in own]
        assert packs[:-1] == [batch[mesh.data_rank(rank)] for batch in whole[:-1]]


def test_packs_are_well_filled_also_for_a_collate() -> None:
    steps = list(packs_of(batch_size=300, max_tokens=400, collate_fn=lambda batch: [len(pack) for pack in batch]))
    assert sum(map(sum, steps)) == 300
    assert sum(TOKENS) / (len(steps) * 400) > 0.85


def test_the_tokens_of_samples_are_shown_in_several_ways() -> None:
    class Own(list[int]):
        lengths = TOKENS

    datasets: list[Any] = [
        Own(range(300)),
        {"x": list(range(300)), "length": np.array(TOKENS)},
        {"input_ids": [row["input_ids"] for row in PACKED]},
    ]
    expected = [[pack.indices for pack in batch] for batch in packs_of()]
    for dataset in datasets:
        loader: DataLoader[Any] = DataLoader(dataset, batch_size=64, max_tokens=100, drop_last=False, shuffle=True)
        assert [[pack.indices for pack in batch] for batch in loader] == expected
    with pytest.raises(TypeError, match="`lengths`"):
        DataLoader(list(range(9)), batch_size=4, max_tokens=10)
    with pytest.raises(ValueError, match=r"sample 27 has 50"):
        packs_of(max_tokens=49)
