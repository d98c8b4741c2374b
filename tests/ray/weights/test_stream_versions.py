"""A sync into a stage of a stream publishes a version to the stream."""

from __future__ import annotations

import asyncio
import threading
import time
from random import Random
from typing import TYPE_CHECKING

import pytest
import torch

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_ray import WeightSync, WeightSyncTimeoutError
from twinkle_remote import current_worker, get, on, release, remote_class, remote_function, session, stream, submit

if TYPE_CHECKING:
    from collections.abc import Mapping


@remote_class()
class Model:
    def __init__(self) -> None:
        self.weight = torch.zeros(4)

    def weights(self) -> Mapping[str, torch.Tensor]:
        return {"weight": self.weight}

    @remote_function(dispatch="slice_dp", collect="flatten")
    def sample(self, rows: list[int]) -> list[tuple[int, float]]:
        return [(row, float(self.weight[0])) for row in rows]

    @remote_function(dispatch="all", collect="first")
    def update(self, batch: object) -> None:
        self.weight += 1.0


WAIT = 30.0


class Gate:
    """What a test lets happen on the workers, which are threads of its process."""

    def __init__(self) -> None:
        self.entered, self.leave = threading.Event(), threading.Event()
        self.told: list[tuple[int | None, int]] = []
        self.made: list[tuple[int, int | None, float, float]] = []


gate = Gate()


@remote_class()
class Sampler:
    def __init__(self) -> None:
        self.weight = torch.zeros(4)

    def weights(self) -> Mapping[str, torch.Tensor]:
        return {"weight": self.weight}

    def on_weights(self, version: int) -> None:
        gate.told.append((current_worker().rank, version))

    @remote_function(dispatch="slice_dp", collect="flatten")
    def sample(self, rows: list[int]) -> list[tuple[int, float]]:
        before = float(self.weight[0])
        if 0 in rows:
            gate.entered.set()
            assert gate.leave.wait(WAIT)
        gate.made.append((rows[0], current_worker().rank, before, float(self.weight[0])))
        return [(row, before) for row in rows]

    @remote_function(dispatch="slice_dp", collect="flatten")
    async def answer(self, rows: list[int]) -> list[tuple[int, float, float]]:
        before = float(self.weight[0])
        while 0 in rows and not gate.leave.is_set():
            gate.entered.set()
            await asyncio.sleep(0.001)
        return [(row, before, float(self.weight[0])) for row in rows]


@remote_class()
class Replica(Sampler):
    @remote_function(dispatch="slice_dp", collect="flatten")
    def sample(self, rows: list[int]) -> list[tuple[int, float]]:
        rank = current_worker().rank
        assert rank is not None
        before = float(self.weight[0])
        time.sleep(Random(97 * rows[0] + rank).choice((0.0, 0.001, 0.004, 0.02)))  # peers drift apart
        gate.made.append((rows[0], rank, before, float(self.weight[0])))
        return [(row, before) for row in rows]


@pytest.fixture
def fresh_gate() -> Gate:
    global gate
    gate = Gate()
    return gate


def test_a_long_chunk_holds_up_neither_a_sync_nor_the_other_replicas(fresh_gate: Gate) -> None:
    groups = [DeviceGroup("sampler", 3, "CPU"), DeviceGroup("actor", 1, "CPU")]
    with session("threads", groups=groups):
        sampler = on("sampler", DeviceMesh.from_sizes(dp_size=3)).create(Sampler)
        actor = on("actor").create(Model)
        sync = WeightSync(actor, sampler)
        source = [[row] for row in range(60)]
        with stream(source, sampler.sample, rows=1, ahead=8, order="arrival") as batches:
            for number, batch in enumerate(batches, 1):
                ((row, weight),), info = get(batch), batches.info
                assert info is not None
                assert info.begun[0] <= weight <= info.ended[0]
                assert fresh_gate.entered.wait(WAIT)
                get(actor.update(batch))
                if number <= 2:
                    assert sync() == batches.version == number
                if number == 20:
                    assert not fresh_gate.leave.is_set()
                    fresh_gate.leave.set()
                if row == 0:
                    assert (info.begun, info.ended) == ([0], [2]), "it straddles two versions, and says so"
    slow = next(rank for row, rank, _, _ in fresh_gate.made if row == 0)
    assert all(before == after for _, _, before, after in fresh_gate.made), "no chunk sees its weights change"
    assert {before for _, rank, before, _ in fresh_gate.made if rank != slow} >= {1.0, 2.0}
    slow_ones = [before for _, rank, before, _ in fresh_gate.made if rank == slow]
    assert slow_ones[0] == 0.0 and set(slow_ones[1:]) <= {2.0}, "it applies both versions before its next chunk"
    for rank in range(3):
        assert [version for of_rank, version in fresh_gate.told if of_rank == rank] == [1, 2]


def test_a_sync_waits_for_a_rank_that_has_not_applied_two_versions(fresh_gate: Gate) -> None:
    groups = [DeviceGroup("sampler", 1, "CPU"), DeviceGroup("actor", 1, "CPU")]
    with session("threads", groups=groups):
        sampler, actor = on("sampler").create(Sampler), on("actor").create(Model)
        sync, busy = WeightSync(actor, sampler), submit(sampler.sample, [0])
        assert fresh_gate.entered.wait(WAIT)
        assert (sync(), sync()) == (1, 2)
        late = WeightSync(actor, sampler, timeout=0.3)
        late._driver._applying = sync._driver._applying
        with pytest.raises(WeightSyncTimeoutError, match="2 versions of the weights wait"):
            late()
        threading.Timer(0.2, fresh_gate.leave.set).start()
        assert sync() == 3
        assert busy.result() == [(0, 0.0)]
        sync.close()
    assert [version for _, version in fresh_gate.told] == [1, 2, 3]


def test_coroutines_see_a_new_version_between_two_awaits(fresh_gate: Gate) -> None:
    groups = [DeviceGroup("sampler", 1, "CPU"), DeviceGroup("actor", 1, "CPU")]
    with session("threads", groups=groups):
        sampler, actor = on("sampler").create(Sampler), on("actor").create(Model)
        sync = WeightSync(actor, sampler)
        with stream([[row] for row in range(9)], sampler.answer, rows=1, ahead=4, order="arrival") as batches:
            for batch in batches:
                ((row, before, after),), info = get(batch), batches.info
                assert info is not None and info.begun[0] <= before <= after <= info.ended[0]
                if row == 0:
                    assert (before, after) == (0.0, 1.0) and (info.begun, info.ended) == ([0], [1])
                elif not fresh_gate.leave.is_set():
                    assert fresh_gate.entered.wait(WAIT)
                    get(actor.update(batch))
                    assert sync() == 1
                    assert get(submit(sampler.sample, [7])) == [(7, 1.0)]
                    fresh_gate.leave.set()
            assert batches.version == 1


def test_all_ranks_of_a_replica_make_rows_with_the_same_version(fresh_gate: Gate) -> None:
    groups = [DeviceGroup("sampler", 4, "CPU"), DeviceGroup("actor", 1, "CPU")]
    with session("threads", groups=groups):
        sampler = on("sampler", DeviceMesh.from_sizes(dp_size=2, tp_size=2)).create(Replica)
        actor = on("actor").create(Model)
        sync = WeightSync(actor, sampler)
        with stream([[row] for row in range(120)], sampler.sample, rows=1, ahead=12, order="arrival") as batches:
            for number, batch in enumerate(batches, 1):
                ((_, weight),), info = get(batch), batches.info
                assert info is not None and info.begun[0] <= weight <= info.ended[0]
                get(actor.update(batch))
                assert (sync.start().result() if number % 3 == 0 else sync()) == number
        release(sampler)  # after all that its ranks were given: the last version too
    by_row: dict[int, set[tuple[float, float]]] = {}
    for row, _, before, after in fresh_gate.made:
        by_row.setdefault(row, set()).add((before, after))
    assert len(fresh_gate.made) == 240
    assert all(len(seen) == 1 and before == after for seen in by_row.values() for before, after in seen)
    for rank in range(4):
        told = [version for of_rank, version in fresh_gate.told if of_rank == rank]
        assert told == sorted(set(told)) and told[-1] == 120
