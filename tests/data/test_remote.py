"""Loaders on a group: one for each data rank, lazy global batches, a position that lives with the loop."""

import os
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.data.group_lives import check_group_life

from twinkle_data import BadSampleError, Batch, DataLoader
from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import (
    Lazy,
    NotInitializedError,
    current_worker,
    on,
    remote_class,
    remote_function,
    session,
    stats,
)

MESH = DeviceMesh.from_sizes(dp_size=2, tp_size=2)
GROUPS = [DeviceGroup("data", 4, "CPU"), DeviceGroup("actor", 3, "CPU")]
READ: Counter[tuple[int | None, int]] = Counter()
SAMPLES = list(range(100, 122))


@pytest.fixture(params=["threads", "local"])
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    with session(request.param, groups=GROUPS):
        yield request.param


@pytest.fixture
def threads() -> Iterator[None]:
    with session("threads", groups=GROUPS):
        yield


class Watched:
    """Notes which rank reads which sample."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> int:
        READ[current_worker().rank, index] += 1
        if index == 17:
            raise KeyError("torn")
        return index


@remote_class()
class Actor:
    """Says what it is given."""

    @remote_function(dispatch="slice_dp", collect="flatten")
    def rows(self, batch: Batch[int]) -> list[tuple[int, int, int]]:
        rank = current_worker().rank
        assert rank is not None
        return [(rank, index, sample) for index, sample in zip(batch.indices, batch, strict=True)]


def loader(dataset: object = SAMPLES, **options: Any) -> DataLoader[Batch[Any]]:
    usual: dict[str, Any] = {"batch_size": 8, "shuffle": True, "drop_last": False}
    return DataLoader(dataset, **(usual | {"device_mesh": MESH, "remote_group": "data"} | options))


def plain(**options: Any) -> list[Batch[Any]]:
    usual: dict[str, Any] = {"batch_size": 8, "shuffle": True, "drop_last": False}
    return list(DataLoader(SAMPLES, **(usual | options)))


def test_a_loop_sees_the_global_batches(mode: str) -> None:
    own = loader()
    assert len(own) == 3
    for batch, expected in zip(own, plain(), strict=True):
        assert isinstance(batch, Lazy) == (mode == "threads")
        assert (batch.epoch, batch.position, batch.indices) == (0, expected.position, expected.indices)
        assert list(batch) == list(expected)
        assert own.info is not None
        assert own.info.indices == expected.indices
        assert own.position in (expected.position + 8, 0)
    assert len(list(own)) == 3
    assert own.epoch == 2


def test_one_reader_for_each_data_rank(threads: None) -> None:
    READ.clear()
    assert len(list(loader(Watched(), on_error="skip"))) == 3
    assert {rank for rank, _ in READ} == {0, 2}
    assert sum(READ.values()) <= 22 + 1 + 2, "the first one is read by both ranks, which compare it"
    assert {index for _, index in READ} == set(range(22))


def test_without_a_mesh_the_first_worker_reads(threads: None) -> None:
    READ.clear()
    assert [batch.indices for batch in loader(Watched(), device_mesh=None, on_error="skip")] == [
        batch.indices for batch in plain()
    ]
    assert {rank for rank, _ in READ} == {0}


def test_a_batch_goes_to_another_mesh_unfetched(threads: None) -> None:
    actor = on("actor", DeviceMesh.from_sizes(dp_size=3)).create(Actor)
    own = loader()
    for batch, expected in zip(own, plain(), strict=True):
        told = actor.rows(batch)
        assert [(index, sample) for _, index, sample in told] == list(zip(expected.indices, expected, strict=True))
        assert {rank for rank, _, _ in told} == {0, 1, 2}
    reads = [record for record in stats() if record.method.endswith("Loader.read")]
    assert len(reads) >= 3
    assert not any(record.driver_fetched for record in reads)


def test_a_bad_sample_stops_the_loop_where_it_is(threads: None) -> None:
    own = loader(Watched(), shuffle=False)
    loop = iter(own)
    next(loop)
    next(loop)
    with pytest.raises(BadSampleError, match="sample 17 "):
        next(loop)
    assert own.position == 16
    skipping = loader(Watched(), shuffle=False, on_error="skip")
    skipping.load_state_dict(own.state_dict())
    (batch,) = skipping
    assert [index for index, valid in zip(batch.indices, batch.valid, strict=True) if not valid] == [17]
    assert skipping.info is not None
    assert skipping.info.valid == batch.valid


def test_steps_are_read_while_the_loop_works(threads: None) -> None:
    begun = [threading.Event() for _ in range(22)]

    class Slow:
        def __len__(self) -> int:
            return 22

        def __getitem__(self, index: int) -> int:
            begun[index].set()
            return index

    own = loader(Slow, shuffle=False)
    next(iter(own))
    assert begun[16].wait(20), "the third step is read although the loop has only taken the first"
    assert own.position == 8


def test_lives_on_a_group(threads: None) -> None:
    """`TWINKLE_LIVES=2000` runs as many of them."""
    for number in range(int(os.environ.get("TWINKLE_LIVES", "12"))):
        check_group_life(number, "data", 4)


def test_packs_go_to_the_ranks_whole(threads: None) -> None:
    rows = [{"input_ids": [row] * 10} for row in range(22)]
    own = loader(rows, max_tokens=25, batch_size=20)
    expected: DataLoader[Any] = DataLoader(
        rows, batch_size=20, max_tokens=25, shuffle=True, drop_last=False, device_mesh=DeviceMesh.from_sizes(dp_size=2)
    )
    assert len(own) == len(expected)
    assert [[pack.indices for pack in batch] for batch in own][:-1] == [
        [pack.indices for pack in batch] for batch in expected
    ][:-1]


def test_columns_of_a_collate_are_joined(threads: None) -> None:
    def columns(batch: Batch[int]) -> dict[str, list[int]]:
        return {"sample": list(batch), "index": batch.indices}

    own: DataLoader[dict[str, list[int]]] = DataLoader(
        SAMPLES, batch_size=8, collate_fn=columns, device_mesh=MESH, remote_group="data"
    )
    assert [batch["index"] for batch in own] == [list(range(8)), list(range(8, 16))]


@remote_class()
class Trainer:
    """Loads in its own workers."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.batches = iter(DataLoader(SAMPLES, batch_size=8, device_mesh=mesh, drop_last=False))

    @remote_function(dispatch="all", collect="flatten")
    def step(self) -> Batch[int]:
        return next(self.batches)


def test_a_loader_inside_of_a_component(mode: str) -> None:
    trainer = on("data", MESH).create(Trainer, MESH)
    batches = [trainer.step() for _ in range(3)]
    assert [sample for batch in batches for sample, valid in zip(batch, batch.valid, strict=True) if valid] == SAMPLES


def test_errors_say_what_to_do() -> None:
    with pytest.raises(NotInitializedError, match="initialize"):
        loader()
    with session("threads", groups=GROUPS), pytest.raises(ValueError, match="batch_size=7 is global"):
        loader(batch_size=7)
