"""Packing: budgets kept, equally many packs on every rank, resumed to the sample."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from twinkle_data import Batch, DataLoader
from twinkle_data.cursor import Cursor
from twinkle_data.order.orders import Sequential
from twinkle_data.order.packing import Packing, PackPlan
from twinkle_data.order.steps import DataShard
from twinkle_data.order.tails import Tail
from twinkle_data.reading.retries import OnError
from twinkle_mesh import DeviceMesh, use_rank

LENGTHS = [(index * 37) % 50 + 1 for index in range(300)]


def loader(**options: Any) -> DataLoader[Batch[Batch[int]]]:
    usual: dict[str, Any] = {"batch_size": 64, "lengths": LENGTHS, "max_tokens": 100, "tail": "short", "shuffle": True}
    return DataLoader(list(range(300)), **(usual | options))


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(0, 6), st.integers(50, 200)), max_size=4),
    st.integers(0, 2**32),
)
@settings(max_examples=20, deadline=None)
def test_interrupted_runs_deliver_every_sample_once(stretches: list[tuple[int, int, int, int]], seed: int) -> None:
    seen: list[int] = []
    state: dict[str, Any] | None = None
    for ranks, micro_batches, steps, max_tokens in [*stretches, (1, 1, 10**6, 100)]:
        mesh = DeviceMesh.from_sizes(dp_size=ranks)
        loops = []
        for rank in range(ranks):
            own = loader(
                seed=seed, device_mesh=mesh, micro_batches=micro_batches, max_tokens=max_tokens, batch_size=12 * ranks
            )
            if state is not None:
                own.load_state_dict(state)
            loops.append((rank, own, len(own)))
        if loops[0][1].epoch:
            break
        for step in range(steps):
            batches = []
            for rank, own, _ in loops:
                if own.epoch == 0:
                    with use_rank(rank):
                        batches.append(next(own))
            if not batches:
                assert all(promised == step for _, _, promised in loops), "len() is exact"
                break
            assert len({(len(batch), batch.position) for batch in batches}) == 1
            assert len(batches[0]) == micro_batches
            for batch in batches:
                for own_pack, valid in zip(batch, batch.valid, strict=True):
                    assert sum(LENGTHS[index] for index in own_pack.indices) <= max_tokens
                    assert valid == bool(own_pack)
            rows = [index for batch in batches for own_pack in batch for index in own_pack.indices]
            assert len(set(rows)) == len(rows)
            seen += rows
        state = loops[0][1].state_dict()
    assert sorted(seen) == list(range(300))


def test_a_step_is_a_run_of_the_order() -> None:
    own = loader(micro_batches=3)
    order = [index for batch in DataLoader(list(range(300)), batch_size=1, shuffle=True) for index in batch.indices]
    for batch in own:
        rows = [index for own_pack in batch for index in own_pack.indices]
        assert sorted(rows) == sorted(order[batch.position : batch.position + len(rows)])


def test_packs_are_well_filled() -> None:
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 512, size=2000)
    own: DataLoader[Batch[Batch[int]]] = DataLoader(
        range(2000), batch_size=10**6, lengths=lengths.tolist(), max_tokens=4096, micro_batches=4, tail="drop"
    )
    filled = [lengths[own_pack.indices].sum() / 4096 for batch in own for own_pack in batch]
    assert np.mean(filled) > 0.97


class CountedOrder(Sequential):
    """Counts the positions that it is asked for."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.asked = 0

    def take(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        self.asked += len(positions)
        return super().take(epoch, positions)


@pytest.mark.parametrize("batch_size", [64, 10**6])
@pytest.mark.parametrize("shortest", [1, 300])
def test_len_asks_for_the_order_about_once(batch_size: int, shortest: int) -> None:
    """However many of the shortest samples a step might hold, and however few it holds."""
    order = CountedOrder(50_000)
    lengths = np.where(np.arange(50_000) % 2, 17_000, shortest)
    plan = PackPlan(
        order,
        Packing(lengths, 32_768, micro_batches=8),
        dataset_length=50_000,
        batch_size=batch_size,
        data_world_size=1,
        tail="short",
    )
    assert plan.steps_left(Cursor()) == 50_000 // 16
    assert order.asked < 1.2 * 50_000


def test_where_steps_are_cut_depends_on_their_position_alone() -> None:
    lengths = np.random.default_rng(3).integers(1, 512, size=4000).tolist()
    own: DataLoader[Batch[Batch[int]]] = DataLoader(
        range(4000), batch_size=700, lengths=lengths, max_tokens=4096, micro_batches=4, shuffle=True
    )
    whole = [(batch.position, list(batch)) for batch in own]
    for start in (0, 7, len(whole) - 1):
        own.load_state_dict({**own.state_dict(), "epoch": 0, "position": whole[start][0]})
        assert len(own) == len(whole) - start
        assert [(batch.position, list(batch)) for batch in own] == whole[start:]


@pytest.mark.parametrize("tail", ["drop", "short", "pad"])
def test_the_last_step(tail: Tail) -> None:
    own: DataLoader[Batch[Batch[int]]] = DataLoader(
        list(range(9)), batch_size=8, lengths=[10] * 9, max_tokens=20, micro_batches=2, tail=tail
    )
    batches = list(own)
    assert len(batches) == (2 if tail == "drop" else 3)
    if tail != "drop":
        assert batches[-1] == [[8], []]
        assert batches[-1].valid == [True, False]
        assert batches[-1].indices == [8, -1]


class Unreadable:
    """Some long and some short samples cannot be read."""

    def __len__(self) -> int:
        return 300

    def __getitem__(self, index: int) -> int:
        if index % 7 == 0:
            raise ValueError("torn")
        return index


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_what_replaces_a_sample_fits_its_pack(on_error: OnError) -> None:
    own: DataLoader[Batch[Batch[int]]] = DataLoader(
        Unreadable(), batch_size=64, lengths=LENGTHS, max_tokens=60, micro_batches=2, on_error=on_error, tail="short"
    )
    packs = [own_pack for batch in own for own_pack in batch]
    assert all(sum(LENGTHS[sample] for sample in own_pack) <= 60 for own_pack in packs)
    bad = [index for index in range(300) if index % 7 == 0]
    assert own.state_dict()["quarantine"] == bad
    assert sum(not valid for own_pack in packs for valid in own_pack.valid) == (len(bad) if on_error == "skip" else 0)


def test_a_sample_without_a_replacement_that_fits_says_so() -> None:
    class First(Unreadable):
        def __getitem__(self, index: int) -> int:
            if index == 0:
                raise ValueError("torn")
            return index

    lengths = [5, *[50] * 299]
    own: DataLoader[Any] = DataLoader(First(), batch_size=8, lengths=lengths, max_tokens=100, on_error="skip")
    with pytest.raises(ValueError, match=r"5 tokens .*sample 0"):
        next(own)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=300), st.integers(1, 5), st.integers(1, 40), st.integers(0, 9))
@settings(max_examples=50, deadline=None)
def test_steps_follow_from_any_of_them(lengths: list[int], micro_batches: int, batch_size: int, start: int) -> None:
    own: DataLoader[Any] = DataLoader(
        range(len(lengths)),
        batch_size=batch_size,
        lengths=lengths,
        max_tokens=40,
        micro_batches=micro_batches,
        tail="short",
        shuffle=True,
    )
    steps = list(own.plan.steps(Cursor(), DataShard()))
    assert len(own) == len(steps)
    assert sorted(index for step in steps for index in step.indices) == list(range(len(lengths)))
    later = Cursor(0, steps[min(start, len(steps) - 1)].position)
    assert list(own.plan.steps(later, DataShard())) == steps[min(start, len(steps) - 1) :]
    assert own.plan.steps_left(later) == len(steps) - min(start, len(steps) - 1)


def test_collate_gets_packs() -> None:
    def count(batch: Batch[Batch[int]]) -> list[int]:
        return [len(own_pack) for own_pack in batch]

    own: DataLoader[list[int]] = DataLoader(
        list(range(8)), batch_size=8, lengths=[10] * 8, max_tokens=20, micro_batches=2, collate_fn=count
    )
    assert list(own) == [[2, 2], [2, 2]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": None}, "packing needs both"),
        ({"max_tokens": None}, "packing needs both"),
        ({"max_tokens": 49}, r"6 of 300 samples .* the first is sample 27 with 50"),
        ({"lengths": [1] * 299}, "one number of tokens for each of 300 samples"),
        ({"micro_batches": 0}, "micro_batches=0"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"batch_size": 1000, "max_tokens": 10**6, "tail": "drop"}, "no full step"),
        ({"lengths": None, "max_tokens": None, "micro_batches": 2}, "belongs to packing"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loader(**options)


def test_an_empty_dataset_is_not_blamed_on_the_tail() -> None:
    with pytest.raises(ValueError, match="empty"):
        DataLoader([], batch_size=4, lengths=[], max_tokens=10, tail="short")


def test_lengths_are_whole_numbers() -> None:
    with pytest.raises(TypeError, match=r"float64 .*1\.5"):
        DataLoader([0, 1], batch_size=2, lengths=[1.5, 2.0], max_tokens=10)  # type: ignore[list-item]  # on purpose
