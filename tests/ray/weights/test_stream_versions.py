"""A sync into a stage of a stream publishes a version to the stream."""

from __future__ import annotations

import asyncio
import threading
import time
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_ray import WeightSync, WeightSyncError
from twinkle_ray.weights.controller.controller import Controller
from twinkle_ray.weights.controller.participants import RemoteParticipants
from twinkle_remote import current_worker, get, on, release, remote_class, remote_function, session, stream, submit
from twinkle_remote.backends.support import WorkersOf, component_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


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


def test_a_sync_publishes_a_version_and_rows_are_made_with_it() -> None:
    groups = [DeviceGroup("sampler", 2, "CPU"), DeviceGroup("actor", 1, "CPU"), DeviceGroup("other", 1, "CPU")]
    with session("threads", groups=groups):
        sampler = on("sampler", DeviceMesh.from_sizes(dp_size=2)).create(Model)
        actor, other = on("actor").create(Model), on("other").create(Model)
        sync, elsewhere = WeightSync(actor, sampler), WeightSync(actor, other)
        source = [list(range(at, at + 4)) for at in range(0, 40, 4)]
        with stream(source, sampler.sample, rows=4, ahead=12, order="arrival", max_lag=1) as batches:
            for number, batch in enumerate(batches, 1):
                info = batches.info
                assert info is not None
                for (row, weight), index, begun in zip(get(batch), info.indices, info.begun, strict=True):
                    assert row == index
                    assert begun <= weight, "a row is made with the weights of its version, or newer ones"
                get(actor.update(batch))
                elsewhere()
                assert batches.version == number - 1
                assert sync() == batches.version == number
            assert batches.stats().worst_lag == 1


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
class Tracked(Sampler):
    @remote_function(dispatch="slice_dp", collect="flatten")
    def sample(self, rows: list[int]) -> list[tuple[int, str, float]]:  # type: ignore[override]  # rows hold the group too
        return [(row, str(current_worker().group), float(self.weight[0])) for row in rows]

    @remote_function(dispatch="all", collect="none")
    def seen(self) -> float:
        return float(self.weight[0])


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
                if number <= 5:
                    assert sync() == batches.version == number
                    assert sync.delivery is not None and sync.delivery.changed == ("weight",)
                if number == 20:
                    assert not fresh_gate.leave.is_set()
                    fresh_gate.leave.set()
                if row == 0:
                    assert (info.begun, info.ended) == ([0], [5]), "it straddles five versions, and says so"
    slow = next(rank for row, rank, _, _ in fresh_gate.made if row == 0)
    assert all(before == after for _, _, before, after in fresh_gate.made), "no chunk sees its weights change"
    assert {before for _, rank, before, _ in fresh_gate.made if rank != slow} >= {1.0, 5.0}
    slow_ones = [before for _, rank, before, _ in fresh_gate.made if rank == slow]
    assert slow_ones[0] == 0.0 and set(slow_ones[1:]) <= {5.0}, "it takes the newest version before its next chunk"
    assert [version for rank, version in fresh_gate.told if rank == slow] == [4, 5], "it kept two versions at most"
    for rank in {0, 1, 2} - {slow}:
        told = [version for of_rank, version in fresh_gate.told if of_rank == rank]
        assert told == sorted(set(told)) and told[-1] == 5


def test_coroutines_see_a_new_version_between_two_awaits(fresh_gate: Gate) -> None:
    groups = [DeviceGroup("sampler", 1, "CPU"), DeviceGroup("actor", 1, "CPU")]
    with session("threads", groups=groups):
        sampler, actor = on("sampler").create(Sampler), on("actor").create(Model)
        sync = WeightSync(actor, sampler)
        with stream(
            [[row] for row in range(9)], sampler.answer, rows=1, ahead=4, order="arrival", at_once=4
        ) as batches:
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


def test_a_replica_that_cannot_take_a_version_fails_the_next_sync(fresh_gate: Gate) -> None:
    @remote_class()
    class Broken(Sampler):
        def on_weights(self, version: int) -> None:
            raise KeyError("no such cache")

    groups = [DeviceGroup("sampler", 1, "CPU"), DeviceGroup("actor", 1, "CPU")]
    fresh_gate.leave.set()
    with session("threads", groups=groups):
        sampler, actor = on("sampler").create(Broken), on("actor").create(Model)
        sync = WeightSync(actor, sampler)
        with stream([[row] for row in range(9)], sampler.sample, rows=1, ahead=2) as batches:
            get(next(batches))
            assert sync() == 1
            assert get(submit(sampler.sample, [7])) == [(7, 0.0)]
            with pytest.raises(WeightSyncError, match=r"version 1 .*no such cache"):
                sync()
            assert sync() == 2


@pytest.mark.parametrize("leaves", [21, 250])  # after the 21st row the other one may have no weights yet
def test_a_component_joins_with_current_weights_and_another_is_drained(fresh_gate: Gate, leaves: int) -> None:
    fresh_gate.leave.set()
    groups = [DeviceGroup("sampler", 2, "CPU"), DeviceGroup("more", 2, "CPU"), DeviceGroup("actor", 1, "CPU")]
    with session("threads", groups=groups):
        pair = DeviceMesh.from_sizes(dp_size=2)
        sampler, more = on("sampler", pair).create(Tracked), on("more", pair).create(Tracked)
        actor = on("actor").create(Model)
        sync = WeightSync(actor, sampler)
        made: list[tuple[int, str, float]] = []

        def rows() -> Iterator[list[int]]:
            for row in range(400):
                yield [row]

        with stream(rows(), sampler.sample, rows=1, ahead=6, order="arrival") as batches:
            for number, batch in enumerate(batches, 1):
                ((row, group, weight),), info = get(batch), batches.info
                made.append((row, group, weight))
                assert info is not None and info.begun[0] <= weight <= info.ended[0]
                if number % 5 == 0:
                    get(actor.update(batch))
                    sync()
                if number == 20:
                    batches.add(more.sample)
                    with pytest.raises(ValueError, match="in the stream already"):
                        batches.add(more.sample)
                if number == leaves:
                    batches.drain(sampler.sample, timeout=WAIT)
                    left = number
                    with pytest.raises(ValueError, match="'more'"):
                        batches.drain(more.sample)
        assert sorted(row for row, _, _ in made) == list(range(400))
        assert {group for _, group, _ in made[:20]} == {"sampler"}
        first = next(weight for _, group, weight in made if group == "more")
        assert first >= 4.0, "it has the weights of the fourth sync before its first row"
        assert {group for _, group, _ in made[left + 7 :]} == {"more"}
        before = get(submit(more.seen))
        sync()
        assert get(submit(more.seen)) == before, "it is not given weights any more when the stream is closed"
        assert get(submit(sampler.seen)) == [80.0, 80.0]


@pytest.mark.parametrize("at_once", [1, 3])
def test_all_ranks_of_a_replica_make_a_chunk_with_the_same_version(fresh_gate: Gate, at_once: int) -> None:
    groups = [DeviceGroup("sampler", 4, "CPU"), DeviceGroup("actor", 1, "CPU")]
    with session("threads", groups=groups):
        sampler = on("sampler", DeviceMesh.from_sizes(dp_size=2, tp_size=2)).create(Replica)
        actor = on("actor").create(Model)
        sync = WeightSync(actor, sampler)
        with stream(
            [[row] for row in range(120)], sampler.sample, rows=1, ahead=12, order="arrival", at_once=at_once
        ) as batches:
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


def test_a_sync_whose_target_is_gone_waits_until_its_stream_has_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with session("threads", groups=[DeviceGroup("sampler", 2, "CPU"), DeviceGroup("actor", 1, "CPU")]):
        sampler, actor = on("sampler", DeviceMesh.from_sizes(dp_size=2)).create(Model), on("actor").create(Model)
        sync = WeightSync(actor, sampler)
        component = component_of(sampler)
        assert component is not None
        both = WorkersOf(component, (0, 1))

        def all_are_gone(ranks: RemoteParticipants, *, lost_only: bool = False) -> bool:
            ranks.keep([])
            return True

        source = [[row, row + 1] for row in range(0, 20, 2)]
        with stream(source, sampler.sample, rows=2, ahead=2, order="arrival") as batches:
            next(iter(batches))
            assert sync() == 1
            monkeypatch.setattr(RemoteParticipants, "look_who_lives", all_are_gone)
            sync._controller.forget()
            with pytest.raises(WeightSyncError, match="no rank of Model"):
                sync()
            noticed = threading.Timer(0.3, sync.leave_out, [both])
            noticed.start()
            assert sync() == 2 and sync.delivery is not None and sync.delivery.changed == ()
            noticed.join()
            monkeypatch.undo()
            sync.take_back(both)
            assert sync() == 3


@pytest.mark.parametrize("returned", ["another", "itself"])
def test_a_rank_that_dies_while_one_comes_back_is_left_out(monkeypatch: pytest.MonkeyPatch, returned: str) -> None:
    """The number of ranks is the same before and after, and a rank that is back has lost what it had of the sync."""
    with session("threads", groups=[DeviceGroup("sampler", 3, "CPU"), DeviceGroup("actor", 1, "CPU")]):
        sampler, actor = on("sampler", DeviceMesh.from_sizes(dp_size=3)).create(Model), on("actor").create(Model)
        sync = WeightSync(actor, sampler)
        component = component_of(sampler)
        assert component is not None
        sync.leave_out(WorkersOf(component, (2,)))
        source = [list(range(row, row + 3)) for row in range(0, 30, 3)]
        with stream(source, sampler.sample, rows=3, ahead=3, order="arrival") as batches:
            next(iter(batches))
            commit = sync._controller.commit
            failed: list[Any] = []

            def fail_once(attempt: Any) -> Any:
                if failed:
                    return commit(attempt)
                failed.append(sync._own.living)
                sync.leave_out(WorkersOf(component, (1,)))
                sync.take_back(WorkersOf(component, (2,) if returned == "another" else (1,)))
                raise WeightSyncError("rank 1 died")

            monkeypatch.setattr(sync._controller, "commit", fail_once)
            assert sync() == 1
            assert failed == [[0, 1]]
            assert list(sync._own.living) == ([0, 2] if returned == "another" else [0, 1])


def test_no_other_sync_begins_while_one_asks_which_ranks_it_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    with session("threads", groups=[DeviceGroup("sampler", 2, "CPU"), DeviceGroup("actor", 1, "CPU")]):
        sampler, actor = on("sampler", DeviceMesh.from_sizes(dp_size=2)).create(Model), on("actor").create(Model)
        sync = WeightSync(actor, sampler)
        steps: list[str] = []
        begin, commit, another = Controller.begin, Controller.commit, threading.Thread(target=sync)

        def counted(self: Controller, *args: Any, **options: Any) -> Any:
            steps.append("begin")
            return begin(self, *args, **options)

        def lost(self: Controller, attempt: Any) -> Any:
            monkeypatch.setattr(Controller, "commit", commit)
            raise WeightSyncError("a rank died")

        def asked(self: Controller) -> bool:
            another.start()
            another.join(0.2)
            steps.append("asked")
            return True

        monkeypatch.setattr(Controller, "begin", counted)
        monkeypatch.setattr(Controller, "commit", lost)
        monkeypatch.setattr(Controller, "can_continue_without", asked)
        with stream([[0, 1]] * 4, sampler.sample, rows=2, ahead=4) as batches:
            next(iter(batches))
            sync()
            another.join(20.0)
        assert steps == ["begin", "asked", "begin", "begin"]
        assert sync.version == 2
