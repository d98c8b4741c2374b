"""Steps of a run: cut from the order first, divided over data ranks last; thousands of random interrupted runs."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinkle_data.cursor import Cursor
from twinkle_data.order.orders import Sequential, Shuffled
from twinkle_data.order.steps import BatchPlan, DataShard
from twinkle_data.order.tails import Tail


def global_rows(plan: BatchPlan, cursor: Cursor, world: int) -> list[tuple[list[int], Cursor]]:
    """Each step that is left in an epoch: the valid indices in data order, and the cursor behind it."""
    ranks = [list(plan.steps(cursor, DataShard(world, rank))) for rank in range(world)]
    assert {len(steps) for steps in ranks} == {plan.steps_left(cursor)}, "every rank takes the same, promised steps"
    whole = list(plan.steps(cursor, DataShard(world)))
    found = []
    for number, parts in enumerate(zip(*ranks, strict=True)):
        assert len({(part.position, part.rows) for part in parts}) == 1
        joined = [index for part in parts for index in part.indices]
        assert joined == whole[number].indices, "what the driver has is what the ranks have, in data order"
        shift, fillers = 0, []
        for part in parts:
            fillers += [shift + row for row in part.fillers]
            shift += len(part.indices)
        assert tuple(fillers) == whole[number].fillers
        valid = [index for row, index in enumerate(joined) if row not in fillers]
        assert len(valid) == parts[0].rows
        found.append((valid, plan.normalize(Cursor(cursor.epoch, parts[0].position + parts[0].rows))))
    return found


STRETCHES = st.lists(
    st.tuples(st.integers(1, 6), st.integers(1, 9), st.integers(0, 7), st.sampled_from(["short", "pad"])),
    min_size=1,
    max_size=5,
)


@pytest.mark.slow
@given(STRETCHES, st.integers(1, 70), st.integers(0, 2**64 - 1), st.booleans())
@settings(max_examples=300, deadline=None)
def test_interrupted_runs_lose_repeat_and_reorder_nothing(
    stretches: list[tuple[int, int, int, Tail]], length: int, seed: int, shuffle: bool
) -> None:
    def order() -> Any:
        return Shuffled(length, seed) if shuffle else Sequential(length)

    cursor, seen = Cursor(), []
    for world, each, steps, tail in stretches:
        plan = BatchPlan(order(), world * each, tail)
        for rows, behind in global_rows(plan, cursor, world)[:steps]:
            seen += rows
            cursor = behind
    assert cursor.epoch * length + cursor.position == len(seen)
    plan = BatchPlan(order(), 1, "drop")
    epochs = -(-len(seen) // length)
    expected = [step.indices[0] for epoch in range(epochs) for step in plan.steps(Cursor(epoch), DataShard())]
    assert seen == expected[: len(seen)]


@given(st.integers(1, 300), st.integers(1, 8), st.integers(1, 20), st.integers(0, 300))
@settings(max_examples=100, deadline=None)
def test_drop_takes_full_batches_only(length: int, world: int, each: int, position: int) -> None:
    if world * each > length:
        with pytest.raises(ValueError, match="has no step"):
            BatchPlan(Sequential(length), world * each, "drop")
        return
    plan = BatchPlan(Sequential(length), world * each, "drop")
    found = global_rows(plan, Cursor(0, min(position, length)), world)
    assert all(len(rows) == world * each for rows, _ in found)
    assert len(found) == (length - min(position, length)) // (world * each)


@pytest.mark.parametrize("tail", ["drop", "short", "pad"])
def test_an_empty_dataset_is_an_error(tail: Tail) -> None:
    with pytest.raises(ValueError, match="empty"):
        BatchPlan(Sequential(0), 4, tail)


def test_a_billion_samples_start_at_once() -> None:
    plan = BatchPlan(Shuffled(10**9, 3), 1024, "drop")
    step = next(plan.steps(Cursor(5, 999_000_064), DataShard(8, 3)))
    assert len(set(step.indices)) == 128
    assert plan.steps_left(Cursor(5, 999_000_064)) == (10**9 - 999_000_064) // 1024
