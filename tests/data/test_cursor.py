"""Interrupted runs: whatever changes at a restart, nothing is lost, repeated or reordered."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinkle_data import Batch, DataLoader, StateMismatchError, merge_states
from twinkle_mesh import DeviceMesh, use_rank

MESHES = {
    1: DeviceMesh.from_sizes(dp_size=1),
    2: DeviceMesh.from_sizes(dp_size=2),
    3: DeviceMesh.from_sizes(dp_size=3, tp_size=2),
    4: DeviceMesh.from_sizes(dp_size=2, fsdp_size=2),
}


def loaders(samples: list[int], ranks: int, each: int, **options: Any) -> list[DataLoader[Batch[int]]]:
    mesh = MESHES[ranks]
    return [DataLoader(samples, batch_size=ranks * each, device_mesh=mesh, **options) for _ in range(mesh.world_size)]


def deliver(own: list[DataLoader[Batch[int]]], ranks: int) -> list[int] | None:
    """One step on every rank: the valid samples in data order, or None at the end of the epoch."""
    mesh = MESHES[ranks]
    rows: dict[int, Batch[int] | None] = {}
    for rank, loader in enumerate(own):
        with use_rank(rank):
            batch = next(loader, None)
            data_rank = mesh.data_rank()
        assert data_rank not in rows or rows[data_rank] == batch, "peers see the same samples"
        rows[data_rank] = batch
    ended = {batch is None for batch in rows.values()}
    assert len(ended) == 1, "every rank takes the same number of steps"
    if ended == {True}:
        return None
    return [
        sample
        for _, batch in sorted(rows.items())
        for sample, valid in zip(batch or [], batch.valid if batch else [], strict=True)
        if valid
    ]


@st.composite
def runs(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Stretches between restarts: (ranks, rows of each, steps)."""
    stretch = st.tuples(st.sampled_from(sorted(MESHES)), st.integers(1, 7), st.integers(1, 9))
    return draw(st.lists(stretch, min_size=1, max_size=6))


@given(runs(), st.integers(1, 60), st.integers(0, 2**64 - 1), st.booleans(), st.sampled_from(["short", "pad"]))
@settings(max_examples=60, deadline=None)
@pytest.mark.slow
def test_interrupted_runs_deliver_the_order(
    stretches: list[tuple[int, int, int]], length: int, seed: int, shuffle: bool, tail: str
) -> None:
    samples = [1000 + index for index in range(length)]
    seen: list[int] = []
    state: dict[str, Any] | None = None
    for ranks, each, steps in stretches:
        own = loaders(samples, ranks, each, seed=seed, shuffle=shuffle, tail=tail)
        for loader in own:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
        promised = len(own[0])
        for _ in range(steps):
            rows = deliver(own, ranks)
            if rows is None:
                assert promised == 0, "len() is exact"
                promised = len(own[0])
            else:
                seen += rows
                promised -= 1
        state = merge_states(loader.state_dict() for loader in own)
        assert all(loader.state_dict() == state for loader in own), "the state is the same on every rank"
    expected: list[int] = []
    plain = DataLoader(samples, batch_size=1, seed=seed, shuffle=shuffle)
    while len(expected) < len(seen):
        expected += [batch[0] for batch in plain]
    assert seen == expected[: len(seen)]
    assert state is not None
    assert state["epoch"] * length + state["position"] == len(seen)


@given(runs(), st.integers(1, 60), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_drop_loses_only_rows_that_make_no_step(stretches: list[tuple[int, int, int]], length: int, seed: int) -> None:
    state: dict[str, Any] | None = None
    epoch: list[int] = []
    for ranks, each, steps in stretches:
        if ranks * each > length:
            continue
        own = loaders(list(range(length)), ranks, each, seed=seed, shuffle=True)
        for loader in own:
            if state is not None:
                loader.load_state_dict(state)
        for _ in range(steps):
            if own[0].position == 0:
                epoch = []
            rows = deliver(own, ranks)
            if rows is not None:
                assert len(rows) == ranks * each
                epoch += rows
                assert len(set(epoch)) == len(epoch)
        state = own[0].state_dict()
        assert length - state["position"] >= 1


def test_the_end_of_an_epoch_is_the_start_of_the_next() -> None:
    loader = DataLoader(list(range(10)), batch_size=4)
    for _ in loader:
        pass
    assert (loader.epoch, loader.position, len(loader)) == (1, 0, 2)
    again = DataLoader(list(range(10)), batch_size=4)
    again.load_state_dict(loader.state_dict())
    assert [list(batch) for batch in again] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_the_last_batch_already_stands_in_the_next_epoch() -> None:
    loader = DataLoader(list(range(8)), batch_size=4)
    next(loader)
    next(loader)
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (1, 0)


def test_next_after_a_jump_ends_no_epoch() -> None:
    loader = DataLoader(list(range(8)), batch_size=4)
    for epoch in range(3):
        loader.set_epoch(epoch)
        assert [list(next(loader)) for _ in range(len(loader))] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    loader.load_state_dict(loader.state_dict())
    assert list(next(loader)) == [0, 1, 2, 3]


def test_a_loop_left_early_goes_on() -> None:
    loader = DataLoader(list(range(10)), batch_size=2, tail="short")
    for batch in loader:
        if batch == [2, 3]:
            break
    assert len(loader) == 3
    assert [list(batch) for batch in loader] == [[4, 5], [6, 7], [8, 9]]


def test_a_loop_that_was_overtaken_says_so() -> None:
    loader = DataLoader(list(range(10)), batch_size=2)
    first, second = iter(loader), iter(loader)
    next(first)
    with pytest.raises(RuntimeError, match="start a new loop"):
        next(second)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"dataset": list(range(31))}, "length"),
        ({"dataset": list(range(1, 31))}, "fingerprint"),
        ({"seed": 4}, "seed"),
        ({"shuffle": False}, "algorithm"),
    ],
)
def test_a_state_of_another_order_is_refused(options: dict[str, Any], named: str) -> None:
    usual: dict[str, Any] = {"dataset": list(range(30)), "batch_size": 2, "seed": 3, "shuffle": True}
    state = DataLoader(**usual).state_dict()
    other: DataLoader[Batch[int]] = DataLoader(**(usual | options))
    with pytest.raises(StateMismatchError, match=f"{named}: saved .*, here "):
        other.load_state_dict(state)


@pytest.mark.parametrize("broken", [{}, {"epoch": -1}, {"position": 31}, {"position": True}, {"version": 9}])
def test_what_is_no_state_is_refused(broken: dict[str, Any]) -> None:
    loader = DataLoader(list(range(30)), batch_size=2)
    state = {**loader.state_dict(), **broken} if broken else {"step": 3}
    with pytest.raises(StateMismatchError):
        loader.load_state_dict(state)


def test_states_of_all_ranks_merge() -> None:
    state = DataLoader(list(range(30)), batch_size=2).state_dict()
    merged = merge_states([{**state, "quarantine": [7]}, {**state, "quarantine": [3, 7]}])
    assert merged == {**state, "quarantine": [3, 7]}
    with pytest.raises(StateMismatchError, match="position"):
        merge_states([state, {**state, "position": 2}])


def test_another_fingerprint_is_told_how_to_be_set() -> None:
    state = DataLoader(list(range(9)), batch_size=3).state_dict()
    with pytest.raises(StateMismatchError, match=r'fingerprint: saved .*give both loaders a fingerprint="\.\.\."'):
        DataLoader(list(range(1, 10)), batch_size=3).load_state_dict(state)
    with pytest.raises(StateMismatchError) as caught:
        DataLoader(list(range(9)), batch_size=3, seed=1).load_state_dict(state)
    assert "give both loaders" not in str(caught.value)
