"""Steps of a run: cut from the order first, divided over data ranks last; packs within their budget."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinkle_data import DataLoader
from twinkle_data.order import DatasetOrder
from twinkle_data.plan import Plan, packed
from twinkle_mesh import DeviceMesh, use_rank

STRETCHES = st.lists(
    st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(0, 6), st.booleans()), min_size=1, max_size=5
)


def global_rows(plan: Plan, epoch: int, position: int, world: int) -> list[tuple[list[int], int]]:
    """Each step that is left in an epoch: the valid indices in data order, and the position behind it."""
    ranks = [list(plan.steps(epoch, position, rank)) for rank in range(world)]
    assert {len(steps) for steps in ranks} == {plan.left(epoch, position)}, "every rank takes the same, promised steps"
    whole = list(plan.steps(epoch, position, None))
    found = []
    for number, parts in enumerate(zip(*ranks, strict=True)):
        assert len({(part.position, part.rows, len(part.indices)) for part in parts}) == 1
        valid = [row for part in parts for row in part.indices[: len(part.indices) - part.padding]]
        assert valid == whole[number].indices, "what the driver has is what the ranks have, in data order"
        assert len(valid) == parts[0].rows
        found.append((valid, parts[0].position + parts[0].rows))
    return found


@pytest.mark.slow
@given(STRETCHES, st.integers(1, 70), st.integers(0, 2**64 - 1), st.booleans())
@settings(max_examples=200, deadline=None)
def test_interrupted_runs_lose_repeat_and_reorder_nothing(
    stretches: list[tuple[int, int, int, bool]], length: int, seed: int, shuffle: bool
) -> None:
    order = DatasetOrder(length, seed, shuffle=shuffle)
    epoch, position = 0, 0
    for world, each, steps, drop_last in stretches:
        plan = Plan(order, world * each, world, drop_last=drop_last)
        if not plan.has_step(position):
            epoch, position = epoch + 1, 0
        for rows, behind in global_rows(plan, epoch, position, world)[:steps]:
            assert rows == order.block(epoch, position, behind).tolist()
            position = behind


@given(st.integers(1, 300), st.integers(1, 8), st.integers(1, 20), st.integers(0, 300))
@settings(max_examples=100, deadline=None)
def test_drop_last_takes_full_batches_only(length: int, world: int, each: int, position: int) -> None:
    plan = Plan(DatasetOrder(length, 0, shuffle=False), world * each, world, drop_last=True)
    assert plan.has_step(0) == (world * each <= length)
    found = global_rows(plan, 0, min(position, length), world)
    assert all(len(rows) == world * each for rows, _ in found)
    assert len(found) == (length - min(position, length)) // (world * each)


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


def test_steps_follow_from_any_of_them_and_are_well_filled() -> None:
    own = packs_of(batch_size=300, max_tokens=400)
    steps = [(batch.position, [pack.indices for pack in batch]) for batch in own]
    tokens = sum(TOKENS)
    assert tokens / (len(steps) * 400) > 0.85
    for start in (1, len(steps) // 2, len(steps) - 1):
        again = packs_of(batch_size=300, max_tokens=400)
        again.load_state_dict({**again.state_dict(), "position": steps[start][0]})
        assert len(again) == len(steps) - start
        assert [(batch.position, [pack.indices for pack in batch]) for batch in again] == steps[start:]


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


def test_collate_gets_packs() -> None:
    loader: DataLoader[list[int]] = DataLoader(
        PACKED, batch_size=64, max_tokens=100, collate_fn=lambda batch: [len(pack) for pack in batch]
    )
    assert sum(sum(counts) for counts in loader) == 300


def test_runs_of_random_packs() -> None:
    draw = random.Random(2)
    for _ in range(30):
        tokens = [draw.randint(1, 30) for _ in range(draw.randint(1, 60))]
        world, size = draw.randint(1, 4), draw.randint(1, 20)
        order = DatasetOrder(len(tokens), 1, shuffle=True)
        plan = Plan(order, size, world, drop_last=False, packing=(np.array(tokens), 30))
        ranks = [list(plan.steps(0, 0, rank)) for rank in range(world)]
        assert {len(steps) for steps in ranks} == {plan.left(0, 0)}
        valid = [row for steps in ranks for step in steps for row in step.indices[: len(step.indices) - step.padding]]
        assert sorted(valid) == list(range(len(tokens)))
