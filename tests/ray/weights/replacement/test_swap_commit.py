"""Weights whose memory a sync replaces end with the same values as plain ones, whatever their layout."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import Parameter

from twinkle_ray.weights import ReplaceableWeights, Shard
from twinkle_ray.weights.messages import MemoryFile, RankReport, Side
from twinkle_ray.weights.planning import box_plan as blocks_module
from twinkle_ray.weights.planning import buckets as buckets_module
from twinkle_ray.weights.planning.manifest import MatchOptions
from twinkle_ray.weights.planning.sync_plan import compile_plan
from twinkle_ray.weights.transport.packing import copy_all, slot_views
from twinkle_ray.weights.worker.rank_state import RankState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from twinkle_ray.weights.shards.shard import Weight

SMALL = 256


@pytest.fixture(autouse=True, scope="module")
def small_slabs() -> Iterator[None]:
    """Cut tensors of this file's size, and give parts of them buckets of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks_module, "MIN_SLAB_BYTES", SMALL)
        patch.setattr(buckets_module, "SOLO_BYTES", SMALL)
        yield


class Sync:
    """A sync between ranks of this process that take each other for processes of one host, or of several."""

    def __init__(self, source: list[Any], target: list[Any], transport: Any, *, reversible: bool = True) -> None:
        self.components: dict[Side, list[Any]] = {"source": source, "target": target}
        self.ranks: dict[Side, list[RankState]] = {side: [] for side in self.components}
        for side, components in self.components.items():
            self.ranks[side] = [RankState("sync") for _ in components]
        self.transport, self.reversible = transport, reversible

    def prepare(self) -> frozenset[MemoryFile]:
        reports: dict[Side, list[RankReport]] = {}
        occupied: set[MemoryFile] = set()
        for side, ranks in self.ranks.items():
            reports[side] = []
            for number, (state, component) in enumerate(zip(ranks, self.components[side], strict=True)):
                state.read(component.weights(), written=side == "target")
                state.begin()
                shards = state.local_shards
                process = f"{side}{number}"
                reports[side].append(
                    RankReport(process, "here", "here", 0, shards.digest, shards.rank_specs, "cpu", None, None)
                )
                occupied |= frozenset() if state.swap_state is None else state.swap_state.occupied()
        specs: Any = {side: [report.rank_specs for report in of_side] for side, of_side in reports.items()}
        plan = compile_plan(specs, reports, MatchOptions(convert=True), 1 << 20, self.transport)
        for side, ranks in self.ranks.items():
            for number, state in enumerate(ranks):
                if state.rank_plan is None or state.rank_plan.digest != plan.digest:
                    state.forget()
                    state.rank_plan = plan.rank_plan(side, number)
        return frozenset(occupied)

    def transfer(self) -> None:
        occupied = self.prepare()
        handles: dict[int, object] = {}
        sent: dict[int, list[Tensor]] = {}
        for side in ("source", "target"):
            for state in self.ranks[side]:
                assert state.rank_plan is not None
                state.begin_block_stores(occupied)
                for index, bucket in state.rank_plan.buckets.items():
                    route = state.rank_plan.routes[index]
                    if side == "source":
                        sent[index] = state.blocks(state.rank_plan, index)
                        if route != "link":
                            handles[index] = state.block_store(route).put([(bucket, sent[index])], copy=False)[0]
                    elif route == "link":
                        copy_all(slot_views(bucket, state.staging(state.rank_plan, index)), sent[index])
                    else:
                        state.arrived[index] = state.block_store(route).get(bucket, handles[index])

    def __call__(self, fails: int | None = None) -> list[int]:
        """Sync; with `fails`, this rank of the target fails after its commit, and the others do not commit."""
        self.transfer()
        changed = []
        targets = self.ranks["target"]
        for number, state in enumerate(targets[: len(targets) if fails is None else fails + 1]):
            assert state.rank_plan is not None
            weights = self.components["target"][number].weights
            changed.append(state.apply(state.rank_plan, weights, reversible=self.reversible))
        for ranks in self.ranks.values():
            for state in ranks:
                if fails is None:
                    state.finalize()
                else:
                    state.rollback()
        return changed

    def hold(self) -> None:
        """Have every rank of the target hold the values, as in flight."""
        self.transfer()
        for ranks in self.ranks.values():
            for state in ranks:
                if ranks is self.ranks["target"]:
                    assert state.rank_plan is not None
                    state.held.hold(1, state.rank_plan, state.arrivals(state.rank_plan))
                state.clear()

    def take(self) -> None:
        """Have every rank of the target take what it holds."""
        for state, component in zip(self.ranks["target"], self.components["target"], strict=True):
            version = state.held.get(1)
            if version is not None:
                state.read(component.weights(), written=True)
                state.held_commit(version).apply()
                state.held.drop([1])

    def close(self) -> None:
        for state in [*self.ranks["source"], *self.ranks["target"]]:
            state.forget()


class Source:
    """One of `ranks` holders of the rows of all tensors; with `ranks` None, of all of them."""

    def __init__(self, wholes: Mapping[str, Tensor], rank: int, ranks: int | None) -> None:
        self.wholes, self.rank, self.ranks = wholes, rank, ranks

    def weights(self) -> dict[str, Weight]:
        return {name: part(whole, self.rank, self.ranks, 0) for name, whole in self.wholes.items()}


def part(whole: Tensor, rank: int, ranks: int | None, dim: int) -> Tensor | Shard:
    """A rank's share of a tensor along a dimension, a view of it."""
    if ranks is None or whole.ndim <= dim:
        return whole
    step = -(-whole.shape[dim] // ranks)
    low, high = min(step * rank, whole.shape[dim]), min(step * (rank + 1), whole.shape[dim])
    offset = [0] * whole.ndim
    offset[dim] = low
    return Shard(whole.narrow(dim, low, high - low), whole.shape, offset)


KINDS = ["parameter", "parameter", "plain", "transposed", "fused", "listed", "flat"]


class Target:
    """A rank of the target: each tensor in memory of some kind, and pairs of names tied in one of two ways."""

    def __init__(
        self, wholes: Mapping[str, Tensor], layout: Mapping[str, Any], rank: int, ranks: int | None, replaceable: bool
    ) -> None:
        self.replaceable = replaceable
        self.held: dict[str, Weight] = {}
        for name, whole in wholes.items():
            kind, dim, dtype, tie = layout[name]
            if tie is not None:
                first = self.held[tie[0]]
                if isinstance(first, Shard):
                    first = Shard(again(first.tensor, tie[1]), first.global_shape, first.offset)
                self.held[name] = again(first, tie[1]) if isinstance(first, Tensor) else first
                continue
            given = part(torch.zeros_like(whole, dtype=dtype), rank, ranks, dim)
            tensor = made(given.tensor if isinstance(given, Shard) else given, kind)
            held = Shard(tensor, given.global_shape, given.offset) if isinstance(given, Shard) else tensor
            self.held[name] = [held] if kind == "listed" and isinstance(held, Shard) else held

    def weights(self) -> Mapping[str, Weight]:
        return ReplaceableWeights(self.held) if self.replaceable else self.held

    def tensors(self) -> dict[str, Tensor]:
        found = {}
        for name, held in self.held.items():
            one = held[0] if isinstance(held, list) else held
            assert isinstance(one, Tensor | Shard)
            found[name] = (one.tensor if isinstance(one, Shard) else one).detach()
        return found


def made(values: Tensor, kind: str) -> Tensor:
    values = values.clone()
    if kind == "plain":
        return values
    if kind == "transposed" and values.ndim == 2:
        return Parameter(values.t().contiguous().t(), requires_grad=False)
    if kind == "fused":
        return torch.stack([values, values])[1]
    if kind == "flat":  # a parameter in memory that it does not fill
        return Parameter(torch.stack([values, values])[0], requires_grad=False)
    return Parameter(values, requires_grad=values.is_floating_point())


def again(tensor: Tensor, how: str) -> Tensor:
    """The same tensor, or another one with its memory."""
    if how == "memory":
        return Parameter(tensor.detach(), requires_grad=False) if isinstance(tensor, Parameter) else tensor.detach()
    return tensor


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, Tensor], dict[str, Any]]:
    wholes: dict[str, Tensor] = {}
    layout: dict[str, Any] = {}
    for i in range(draw(st.integers(1, 6))):
        shape = tuple(draw(st.lists(st.integers(0, 40), min_size=0, max_size=2)))
        dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.uint8]))
        wholes[f"w{i}"] = torch.arange(prod(shape)).reshape(shape).to(dtype)
        kept = draw(st.integers(0, 9))
        theirs = torch.float32 if dtype is torch.bfloat16 and not kept else dtype
        layout[f"w{i}"] = (draw(st.sampled_from(KINDS)), draw(st.integers(0, 1)), theirs, None)
    for name in list(wholes):
        if draw(st.integers(0, 3)) == 0 and layout[name][0] != "listed":
            wholes[f"{name}.tied"] = wholes[name]
            layout[f"{name}.tied"] = (*layout[name][:3], (name, draw(st.sampled_from(["object", "memory"]))))
    return wholes, layout


ranks = st.sampled_from([None, 1, 2, 3])


@pytest.mark.parametrize("transport", ["shared", "gloo"])
@given(
    cases(),
    ranks,
    ranks,
    st.booleans(),
    st.lists(st.sampled_from(["sync", "fail", "write", "hold", "take"]), max_size=8),
)
@settings(max_examples=120, deadline=None)
def test_replaceable_and_plain_targets_end_with_the_same_values(
    transport: str,
    case: tuple[dict[str, Tensor], dict[str, Any]],
    sources: int | None,
    targets: int | None,
    reversible: bool,
    steps: list[str],
) -> None:
    wholes, layout = case
    source = [Source(wholes, rank, sources) for rank in range(sources or 2)]
    both = {
        replaceable: [Target(wholes, layout, rank, targets, replaceable) for rank in range(targets or 2)]
        for replaceable in (False, True)
    }
    syncs = {kind: Sync(source, target, transport, reversible=reversible) for kind, target in both.items()}
    for step in (*steps, "sync", "sync"):
        for whole in {id(whole): whole for whole in wholes.values()}.values():
            whole += 1
        if step == "write":  # what a rank writes to its own weights reaches no other rank, and no later sync
            for target in both.values():
                for name, tensor in target[0].tensors().items():
                    if layout[name][3] is None:
                        tensor.add_(3)
        elif step in ("hold", "take"):
            for sync in syncs.values():
                getattr(sync, step)()
        elif step == "fail" and reversible:
            for kind, target in both.items():
                before = [{name: bits(tensor) for name, tensor in one.tensors().items()} for one in target]
                syncs[kind](fails=0)
                assert [{name: bits(tensor) for name, tensor in one.tensors().items()} for one in target] == before
        else:
            assert syncs[False]() == syncs[True]()
        for plain, replaced in zip(both[False], both[True], strict=True):
            mine, theirs = plain.tensors(), replaced.tensors()
            assert all(bits(mine[name]) == bits(theirs[name]) for name in mine)
            assert all(
                (mine[n].shape, mine[n].dtype, mine[n].stride())
                == (theirs[n].shape, theirs[n].dtype, theirs[n].stride())
                for n in mine
            )
            for name, (_, _, _, tie) in layout.items():
                assert tie is None or theirs[name].data_ptr() == theirs[tie[0]].data_ptr()
    for sync in syncs.values():
        sync.close()
    assert all(
        bits(a) == bits(b)
        for a, b in zip(both[False][0].tensors().values(), both[True][0].tensors().values(), strict=True)
    )
