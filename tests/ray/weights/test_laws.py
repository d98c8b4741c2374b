"""The laws of a sync, without processes: any layout to any layout, all or nothing, versions that do not change."""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Replicate
from torch.distributed.tensor import Shard as OnDim
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from twinkle_ray.weights import ManifestError, Shard, WeightSyncError
from twinkle_ray.weights import worker as worker_module
from twinkle_ray.weights.boxes import Box
from twinkle_ray.weights.driver import Driver
from twinkle_ray.weights.manifest import MatchOptions
from twinkle_ray.weights.participants import Answers
from twinkle_ray.weights.routes import SyncOptions, Version
from twinkle_ray.weights.shards import placed_boxes
from twinkle_ray.weights.state import Report
from twinkle_ray.weights.transport import store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool, torch.complex64]


class RanksHere:
    """One side.

    Args:
        name: For messages, and for the names of its processes.
        objects: One for each rank.
        apart: Each rank says that it is a process of its own, so that blocks go through the store.
    """

    runs_at_once = False

    def __init__(self, name: str, objects: Sequence[Any], *, apart: bool) -> None:
        self.name, self.objects, self.apart = name, objects, apart
        self.left_out: frozenset[int] = frozenset()
        self.queued: list[Queued] = []

    @property
    def ranks(self) -> Sequence[int]:
        return [rank for rank in range(len(self.objects)) if rank not in self.left_out]

    def start(self, function: Callable[..., object], arguments: Mapping[int, Any], *, beside: bool = False) -> Answers:
        values = {rank: function(self.objects[rank], *given) for rank, given in arguments.items()}
        if self.apart:
            values = {
                rank: replace(value, process=f"{self.name}{rank}") if isinstance(value, Report) else value
                for rank, value in values.items()
            }
        return Answers(values=values)

    def queue(self, function: Callable[..., object], arguments: Mapping[int, tuple[Any, ...]]) -> Queued:
        self.queued.append(Queued(self, function, arguments))
        return self.queued[-1]

    def run_queued(self) -> None:
        """Each rank runs what stands in its queue."""
        while self.queued:
            self.queued[0].run()


class Queued:
    """A call that stands in the queue of ranks."""

    def __init__(self, side: RanksHere, function: Callable[..., object], arguments: Mapping[int, Any]) -> None:
        self.side, self.function, self.arguments = side, function, arguments

    def run(self) -> None:
        self.side.queued.remove(self)
        for rank, arguments in self.arguments.items():
            self.function(self.side.objects[rank], *arguments)

    def done(self) -> bool:
        return self not in self.side.queued

    def wait(self, timeout: float) -> None:
        """It is done, or the test would wait for ever."""
        assert self.done()


class Sync:
    """A sync between two such sides."""

    def __init__(self, source: RanksHere, target: RanksHere, **options: Any) -> None:
        match = MatchOptions(**{key: options.pop(key) for key in ("rename", "select", "convert") if key in options})
        given: Any = {"timeout": 60.0, "check": "always", "transport": None} | options
        self.driver = Driver(source, target, SyncOptions(match_options=match, **given))  # type: ignore[arg-type]  # stands for a component's ranks
        self.target, self.version = target, 0

    def stage(self) -> Version:
        return self.driver.stage(self.version + 1, _FAR, in_flight=False)

    def publish(self, version: Version) -> None:
        assert self.driver.arrive(version, _FAR, in_flight=False)
        self.driver.publish(version)
        self.version = version.number

    def __call__(self) -> int:
        self.publish(self.stage())
        self.target.run_queued()
        return self.version


_FAR = float("inf")


def copying_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store of a session without one: like Ray's, it copies what it is given."""
    monkeypatch.setattr(store, "put", lambda parts: [part.clone() for part in parts])
    monkeypatch.setattr(store, "get", lambda handle, timeout: handle)


class Rank:
    """A rank's tensors, by name."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        self.tensors = tensors
        self.versions: list[int] = []

    def weights(self) -> dict[str, Any]:
        return self.tensors

    def on_weights(self, version: int) -> None:
        self.versions.append(version)


def parts(whole: Tensor, mesh: tuple[int, ...], where: tuple[int, ...], placed: Sequence[Placement]) -> list[Shard]:
    """What a coordinate of a mesh holds of a tensor, in memory of its own with one element beside each block."""
    found = []
    for box in placed_boxes(tuple(whole.shape), mesh, where, placed):
        block = whole[box.inside(Box.whole(tuple(whole.shape)))]
        wide = torch.zeros((*block.shape[:-1], block.shape[-1] + 1), dtype=whole.dtype) if block.ndim else None
        own = block.clone() if wide is None else wide[..., :-1]
        own.copy_(block)
        found.append(Shard(own, tuple(whole.shape), box.offset))
    return found or [Shard(whole.new_empty((0,) * whole.ndim), tuple(whole.shape), (0,) * whole.ndim)]


def values(shape: tuple[int, ...], dtype: torch.dtype, salt: int) -> Tensor:
    drawn = torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(salt * 1000 + prod(shape)))
    return drawn > 50 if dtype is torch.bool else drawn.to(dtype)


Layout = tuple[tuple[int, ...], list[list[Placement]]]


@st.composite
def layout(draw: st.DrawFn, shapes: Sequence[tuple[int, ...]]) -> Layout:
    """A mesh, and the placements of each tensor on it: uneven shards, strided ones, replicas."""
    mesh = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)))
    placed: list[list[Placement]] = []
    for shape in shapes:
        dims = range(len(shape))
        kinds = [Replicate(), *map(OnDim, dims), *(_StridedShard(dim, split_factor=2) for dim in dims)]
        placed.append([draw(st.sampled_from(kinds)) for _ in mesh])
    return mesh, placed


@st.composite
def syncs(draw: st.DrawFn) -> tuple[list[tuple[int, ...]], list[torch.dtype], list[bool], Layout, Layout]:
    shape = st.lists(st.integers(0, 7), min_size=0, max_size=3).map(tuple)
    shapes = draw(st.lists(shape, min_size=1, max_size=3))
    dtypes = [draw(st.sampled_from(DTYPES)) for _ in shapes]
    ties = [draw(st.booleans()) for _ in shapes]
    return shapes, dtypes, ties, draw(layout(shapes)), draw(layout(shapes))


def side(name: str, laid: Layout, wholes: Sequence[Tensor], ties: Sequence[bool], *, apart: bool) -> RanksHere:
    mesh, placed = laid
    ranks = []
    for where in itertools.product(*map(range, mesh)):
        tensors: dict[str, Any] = {}
        for number, whole in enumerate(wholes):
            tensors[f"t{number}"] = parts(whole, mesh, where, placed[number])
            if ties[number]:
                tensors[f"tied{number}"] = tensors[f"t{number}"]
        ranks.append(Rank(tensors))
    return RanksHere(name, ranks, apart=apart)


def equal(have: Rank, want: Rank) -> bool:
    pairs = [
        (mine.tensor, other.tensor)
        for name in want.tensors
        for mine, other in zip(have.tensors[name], want.tensors[name], strict=True)
    ]
    return all(bytes_of(mine) == bytes_of(other) for mine, other in pairs)


def bytes_of(tensor: Tensor) -> list[int]:
    return list(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


@given(syncs(), st.booleans())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_layout_arrives_in_any_layout_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch,
    sync: tuple[list[tuple[int, ...]], list[torch.dtype], list[bool], Layout, Layout],
    apart: bool,
) -> None:
    copying_store(monkeypatch)
    shapes, dtypes, ties, source, target = sync
    given_first = [values(shape, dtype, 1) for shape, dtype in zip(shapes, dtypes, strict=True)]
    zeros = [torch.zeros_like(whole) for whole in given_first]
    actor = side("actor", source, given_first, ties, apart=apart)
    sampler, expected = (side("sampler", target, wholes, ties, apart=apart) for wholes in (zeros, given_first))
    run = Sync(actor, sampler)
    assert run() == 1
    assert all(map(equal, sampler.objects, expected.objects))
    later = [values(shape, dtype, 2) for shape, dtype in zip(shapes, dtypes, strict=True)]
    newer, expected = side("actor", source, later, ties, apart=apart), side("s", target, later, ties, apart=apart)
    for mine, other in zip(actor.objects, newer.objects, strict=True):
        for name, shards in mine.tensors.items():
            for own, given_now in zip(shards, other.tensors[name], strict=True):
                own.tensor.copy_(given_now.tensor)
    assert run() == 2
    assert all(map(equal, sampler.objects, expected.objects))
    assert all(rank.versions == [1, 2] for rank in sampler.objects)


@pytest.fixture(params=[False, True], ids=["one process", "apart"])
def pair(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Rank, list[Rank], Sync]:
    """A source with a small and a large tensor, two ranks of a target, and a sync between them."""
    copying_store(monkeypatch)
    source = Rank({"small": torch.ones(3), "large": torch.ones(300, 200)})
    targets = [Rank({"small": torch.zeros(3), "large": torch.zeros(300, 200)}) for _ in range(2)]
    sides = RanksHere("actor", [source], apart=request.param), RanksHere("sampler", targets, apart=request.param)
    return source, targets, Sync(*sides)


def held(rank: Rank) -> set[float]:
    return {float(value) for tensor in rank.tensors.values() for value in tensor.flatten()}


def fill(rank: Rank, value: float) -> None:
    for tensor in rank.tensors.values():
        tensor.fill_(value)


def test_a_staged_version_does_not_change_when_the_trainer_steps_on(pair: tuple[Rank, list[Rank], Sync]) -> None:
    source, targets, sync = pair
    first = sync.stage()
    fill(source, 2.0)
    sync.publish(first)
    second = sync.stage()
    fill(source, 3.0)
    sync.publish(second)
    assert [held(rank) for rank in targets] == [{0.0}] * 2, "nothing changes before a rank comes to it in its queue"
    for version in (1.0, 2.0):
        sync.target.queued[0].run()
        assert [held(rank) for rank in targets] == [{version}] * 2
    assert [rank.versions for rank in targets] == [[1, 2]] * 2


@pytest.mark.parametrize("step", ["describe", "stage_out", "stage_in"])
def test_a_failure_at_any_step_leaves_the_old_weights_and_the_next_sync_works(
    pair: tuple[Rank, list[Rank], Sync], step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, targets, sync = pair
    if step != "describe":
        sync()
    before, versions = held(targets[0]), [list(rank.versions) for rank in targets]
    fill(source, 5.0)
    plain = getattr(worker_module, step)

    def broken(instance: object, address: Any, *rest: Any) -> object:
        if address.side == "target" and address.rank == 0 and step != "stage_out":
            return plain(instance, address, *rest)
        plain(instance, address, *rest)
        raise WeightSyncError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(worker_module, step, broken)
        with pytest.raises(WeightSyncError, match="broken"):
            sync()
    sync.driver.forget()
    assert not sync.target.queued
    assert [held(rank) for rank in targets] == [before] * 2
    assert [rank.versions for rank in targets] == versions
    assert sync() == sync.version
    assert [held(rank) for rank in targets] == [{5.0}] * 2


def test_shards_that_change_are_planned_anew(pair: tuple[Rank, list[Rank], Sync]) -> None:
    source, targets, sync = pair
    sync()
    first = sync.driver.compiled
    source.tensors["small"] = torch.full((3,), 4.0)
    sync()
    assert sync.driver.compiled is first, "other memory of the same shape needs no other plan"
    for rank in (source, *targets):
        rank.tensors["small"] = torch.full((5,), 7.0 if rank is source else 0.0)
    assert sync() == 3
    assert targets[1].tensors["small"].tolist() == [7.0] * 5
    halves = torch.zeros(2), torch.zeros(3)
    targets[1].tensors["small"] = [Shard(halves[0], (5,), (0,)), Shard(halves[1], (5,), (2,))]
    assert not sync.driver.arrive(sync.stage(), float("inf"), in_flight=False), "a target alone says so when it gets it"
    assert sync() == 4
    assert [half.tolist() for half in halves] == [[7.0] * 2, [7.0] * 3]


def test_named_sets_go_in_one_version() -> None:
    source = Rank({"model": {"w": torch.ones(3)}, "draft": {"w": torch.full((2,), 2.0)}})
    target = Rank({"draft": {"w": torch.zeros(2)}, "model": {"w": torch.zeros(3)}})
    sync = Sync(RanksHere("a", [source], apart=False), RanksHere("b", [target], apart=False))
    sync()
    assert target.tensors["model"]["w"].tolist() == [1.0] * 3 and target.tensors["draft"]["w"].tolist() == [2.0] * 2
    assert target.versions == [1]
    source.tensors["draft.w"] = torch.ones(2)
    with pytest.raises(ValueError, match=r"'draft.w' twice"):
        sync()


def test_a_function_converts_on_the_source() -> None:
    source, target = Rank({"w": torch.tensor([0.4, 1.6])}), Rank({"w": torch.zeros(2, dtype=torch.int8)})
    sides = RanksHere("a", [source], apart=False), RanksHere("b", [target], apart=False)
    asked: list[str] = []

    def rounded(name: str, block: Tensor, dtype: torch.dtype) -> Tensor:
        asked.append(name)
        return block.round().to(dtype)

    Sync(*sides, convert=rounded)()
    assert target.tensors["w"].tolist() == [0, 2] and set(asked) == {"w"}
    with pytest.raises(ManifestError, match="drop a part"):
        Sync(*sides, convert=True)()
    with pytest.raises(WeightSyncError, match=r"returns torch.int8 of the same shape"):
        Sync(*sides, convert=lambda name, block, dtype: block)()


def test_a_sync_that_changes_nothing_is_said_once(
    pair: tuple[Rank, list[Rank], Sync], caplog: pytest.LogCaptureFixture
) -> None:
    source, _, sync = pair
    sync()
    fill(source, 2.0)
    sync()
    assert caplog.messages == []
    for _ in range(3):
        sync()
    (message,) = caplog.messages
    assert message.startswith("version 3 of sampler has the values of the version before"), message
