from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from twinkle_ray.weights import ManifestError, ReplaceableWeights, Shard, WeightSync, WeightSyncError
from twinkle_ray.weights.transport.shared import SharedBlockStore
from twinkle_ray.weights.worker import endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_ray.weights.shards.shard import Weights

pytestmark = pytest.mark.processes

Part = tuple[tuple[int, ...], tuple[int, ...]]
DTYPES = ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int64", "uint8", "bool", "complex64"]
WHOLE = {
    **{f"dtype.{name}": ((5, 6), name) for name in DTYPES},
    "uneven": ((7, 5), "float32"),
    "scalar": ((), "float32"),
    "empty": ((0, 4), "float32"),
    "large": ((700, 900), "float32"),
    "small": ((3,), "int64"),
}


def values(name: str, salt: int) -> Tensor:
    shape, dtype = WHOLE[name]
    generator = torch.Generator().manual_seed(1000 * salt + sum(map(ord, name)))
    drawn = torch.randint(0, 100, shape, generator=generator)
    return drawn.to(getattr(torch, dtype)) if dtype != "bool" else drawn > 50


def rows(size: int, ranks: int, rank: int) -> tuple[int, int]:
    """torch.chunk's rule, so that the last ranks may hold little or nothing."""
    step = -(-size // ranks)
    return min(step * rank, size), min(step * (rank + 1), size)


class Component:
    """Rank `rank` of `ranks`: its share of dimension `dim` of every tensor, or all of each when `dim` is None."""

    def __init__(self, rank: int, ranks: int, dim: int | None, salt: int | None, replaceable: bool = False) -> None:
        self.layout = (rank, ranks, dim)
        self.versions: list[int] = []
        self.replaceable = replaceable
        self.parts = {name: self.part(name, salt) for name in WHOLE}

    def part(self, name: str, salt: int | None) -> Tensor | Shard:
        rank, ranks, dim = self.layout
        whole = torch.zeros_like(values(name, 0)) if salt is None else values(name, salt)
        if dim is None or whole.ndim <= dim:
            return Parameter(whole, requires_grad=False)
        low, high = rows(whole.shape[dim], ranks, rank)
        offset = [0] * whole.ndim
        offset[dim] = low
        own = Parameter(whole.narrow(dim, low, high - low).clone(), requires_grad=False)
        return Shard(own, whole.shape, offset)

    def weights(self) -> Weights:
        return ReplaceableWeights(self.parts) if self.replaceable else self.parts

    def on_weights(self, version: int) -> None:
        self.versions.append(version)


def tensor(part: Tensor | Shard) -> Tensor:
    return part.tensor if isinstance(part, Shard) else part


def refill(component: Component, salt: int) -> None:
    for name, part in component.parts.items():
        tensor(part).copy_(tensor(component.part(name, salt)))


def holds(component: Component, salt: int) -> list[str]:
    """Names whose values are not those of `salt`."""
    wrong = []
    for name, part in component.parts.items():
        have, want = tensor(part), tensor(component.part(name, salt))
        if not torch.equal(have.reshape(-1).view(torch.uint8), want.reshape(-1).view(torch.uint8)):
            wrong.append(name)
    return wrong


def versions(component: Component) -> list[int]:
    return component.versions


def both_sides(
    process_workers: Callable[..., Any],
    source: tuple[int, int | None],
    target: tuple[int, int | None],
    replaceable: bool = False,
) -> Any:
    return [
        process_workers(name, Component, [(rank, ranks, dim, salt, replaceable) for rank in range(ranks)])
        for name, (ranks, dim), salt in (("actor", source, 0), ("sampler", target, None))
    ]


@pytest.mark.parametrize("replaceable", [False, True])
@pytest.mark.parametrize("transport", ["auto", "gloo"])
@pytest.mark.parametrize(("source", "target"), [((3, 0), (2, 1)), ((2, None), (3, None)), ((1, None), (2, 0))])
def test_every_layout_and_dtype_arrives(
    process_workers: Callable[..., Any], transport: Any, source: Any, target: Any, replaceable: bool
) -> None:
    actor, sampler = both_sides(process_workers, source, target, replaceable)
    with WeightSync(actor, sampler, transport=transport, timeout=60.0, checksum=True) as sync:
        for version in (1, 2, 3):
            actor.run(refill, version)
            assert sync() == version == sync.version
            assert sampler.run(holds, version) == [[]] * target[0]
            assert sampler.run(versions) == [list(range(1, version + 1))] * target[0]
        assert actor.run(holds, 3) == [[]] * source[0]


@pytest.mark.parametrize("replaceable", [False, True])
@pytest.mark.parametrize("transport", ["auto", "gloo"])
def test_the_source_goes_on_while_buckets_travel(
    process_workers: Callable[..., Any], transport: Any, replaceable: bool
) -> None:
    actor, sampler = both_sides(process_workers, (2, 0), (2, None), replaceable)
    sync = WeightSync(actor, sampler, transport=transport, timeout=60.0, checksum=True)
    for version in (1, 2):
        actor.run(refill, version)
        under_way = sync.start()
        actor.run(refill, 77)
        with pytest.raises(WeightSyncError, match="result"):
            sync()
        before = sampler.run(versions)
        assert before == [list(range(1, version))] * 2
        assert under_way.result() == under_way.result() == version
        assert sampler.run(holds, version) == [[]] * 2


class Both:
    """Two components on the same workers."""

    def __init__(self, source: Sequence[object], target: Sequence[object]) -> None:
        self.parts = {"source": Component(*source), "target": Component(*target)}  # type: ignore[arg-type]  # by star


def on_part(both: Both, side: str, function: Callable[..., object], arguments: tuple[object, ...]) -> object:
    return function(both.parts[side], *arguments)


class Half:
    """One of the components of the workers of `Both`."""

    polled = True

    def __init__(self, workers: Any, side: str) -> None:
        self.workers, self.name, self.side, self.size = workers, f"{workers.name}.{side}", side, workers.size

    def start(self, function: Callable[..., object], arguments: Sequence[tuple[object, ...]]) -> Any:
        return self.workers.start(on_part, [(self.side, function, argument) for argument in arguments])

    def run(self, function: Callable[..., object], *arguments: object) -> Any:
        return self.workers.run(on_part, self.side, function, arguments)


@pytest.mark.parametrize("transport", ["auto", "gloo"])
def test_colocated_components(process_workers: Callable[..., Any], transport: Any) -> None:
    workers = process_workers("both", Both, [((rank, 3, 0, 0), (rank, 3, 1, None)) for rank in range(3)])
    actor, sampler = Half(workers, "source"), Half(workers, "target")
    sync = WeightSync(actor, sampler, transport=transport, timeout=60.0)
    for version in (1, 2):
        actor.run(refill, version)
        assert sync() == version
        assert sampler.run(holds, version) == [[]] * 3
    actor.run(refill, 3)
    under_way = sync.start()
    actor.run(refill, 77)
    assert under_way.result() == 3
    assert sampler.run(holds, 3) == [[]] * 3


def test_one_process() -> None:
    actor, sampler = Component(0, 1, None, 5), Component(0, 1, None, None)
    with WeightSync(actor, sampler) as sync:
        assert sync() == 1
        assert holds(sampler, 5) == [] and sampler.versions == [1]
        under_way = sync.start()
        refill(actor, 6)
        assert under_way.result() == 2 and holds(sampler, 5) == []
        assert sync() == 3 and holds(sampler, 6) == []


class Named:
    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def weights(self) -> dict[str, Tensor]:
        return self.tensors


def test_names_are_mapped_by_a_function() -> None:
    source = Named({"model.a": torch.ones(2), "model.b": torch.ones(2) * 2, "value_head": torch.zeros(1)})
    target = Named({"a": torch.zeros(2), "b": torch.zeros(2)})
    WeightSync(source, target, rename=lambda name: name.removeprefix("model.") if "." in name else None)()
    assert target.tensors["a"].tolist() == [1, 1] and target.tensors["b"].tolist() == [2, 2]


@pytest.mark.parametrize("select", ["*.lora_*", ["x.lora_a"], lambda name: "lora" in name])
def test_a_subset_leaves_the_rest_as_it_is(select: Any) -> None:
    source = Named({"x.lora_a": torch.ones(2), "x.base": torch.ones(2)})
    target = Named({"x.lora_a": torch.zeros(2), "x.base": torch.zeros(3)})
    WeightSync(source, target, select=select)()
    assert target.tensors["x.lora_a"].tolist() == [1, 1] and target.tensors["x.base"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("here", "there"), [("float32", "bfloat16"), ("bfloat16", "float32"), ("float32", "float8_e4m3fn")]
)
def test_dtypes_are_converted_on_request(process_workers: Callable[..., Any], here: str, there: str) -> None:
    def build(dtype: str) -> Tensor:
        return torch.linspace(-4, 4, 33).to(getattr(torch, dtype))

    source, target = Named({"w": build(here)}), Named({"w": torch.zeros(33, dtype=getattr(torch, there))})
    with pytest.raises(ManifestError, match=f"'w': {here} at the source, {there} at the target \\(convert=True"):
        WeightSync(source, target)()
    sync = WeightSync(source, target, convert=True)
    sync()
    assert target.tensors["w"].equal(build(here).to(getattr(torch, there)))
    sync.start().result()
    assert target.tensors["w"].equal(build(here).to(getattr(torch, there)))


def test_tied_tensors_are_sent_once() -> None:
    shared = torch.arange(6.0)
    source = Named({"embed": shared, "head": shared, "other": torch.ones(1)})
    untied = Named({"embed": torch.zeros(6), "head": torch.zeros(6), "other": torch.zeros(1)})
    sync = WeightSync(source, untied)
    sync()
    assert untied.tensors["embed"].equal(shared) and untied.tensors["head"].equal(shared)
    assert sync.plan is not None and sync.plan.received(1) == [4 * 7]
    memory = torch.zeros(6)
    tied = Named({"embed": memory, "head": memory, "other": torch.zeros(1)})
    sync = WeightSync(source, tied)
    sync()
    assert memory.equal(shared)
    assert sync.plan is not None and sync.plan.received(1) == [4 * 7]
    memory.zero_()
    WeightSync(Named({"embed": shared, "other": torch.ones(1)}), tied)()
    assert memory.equal(shared)
    memory.zero_()
    WeightSync(source, Named({"embed": memory, "other": torch.zeros(1)}))()
    assert memory.equal(shared)


def test_a_parameter_that_needs_gradients_is_written_in_place() -> None:
    source, target = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    pointers = [parameter.data_ptr() for parameter in target.parameters()]
    a, b = (Named(dict(layer.named_parameters())) for layer in (source, target))
    WeightSync(a, b)()
    assert all(mine.equal(other) for mine, other in zip(source.parameters(), target.parameters(), strict=True))
    assert [parameter.data_ptr() for parameter in target.parameters()] == pointers
    target(torch.ones(3)).sum().backward()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("checksum", [False, True])
def test_dims_of_one_element_have_any_stride(dtype: torch.dtype, checksum: bool) -> None:
    whole = torch.arange(8, dtype=dtype).reshape(2, 4) + 1
    source, target = Named({"row": whole[:1].t(), "one": whole[::2, ::4]}), torch.zeros(2, 4, dtype=dtype)
    WeightSync(source, Named({"row": target[:1].t(), "one": target[1:, ::4]}), checksum=checksum)()
    assert target.tolist() == [[1, 2, 3, 4], [1, 0, 0, 0]]


def test_a_change_of_weights_is_planned_anew() -> None:
    source, target = Named({"w": torch.ones(4)}), Named({"w": torch.zeros(4)})
    sync = WeightSync(source, target)
    sync()
    first = sync.plan
    source.tensors["w"] = torch.full((4,), 2.0)
    assert sync() == 2 and sync.plan is first and target.tensors["w"].tolist() == [2.0] * 4
    for side in (source, target):
        side.tensors = {"w": torch.full((6,), 3.0)}
    target.tensors["w"].zero_()
    assert sync() == 3 and sync.plan is not first and target.tensors["w"].tolist() == [3.0] * 6


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ({"a": torch.ones(2)}, {"b": torch.ones(2)}, "'b' is not in the source (on rank 0 of the target)"),
        ({"a": torch.ones(2)}, {"b": torch.ones(2)}, "not in the target: 'a' (rename= to None or select= leaves"),
        ({"a": torch.ones(2)}, {"a": torch.ones(3)}, "'a': shape (2,) at the source, (3,) at the target"),
        ({"a": torch.ones(2)}, {"a": torch.ones(2).int()}, "'a': float32 at the source, int32 at the target"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_moves(
    source: dict[str, Tensor], target: dict[str, Tensor], message: str
) -> None:
    before = copy.deepcopy(target)
    sync = WeightSync(Named(source), Named(target))
    with pytest.raises(ManifestError, match=re.escape(message)):
        sync()
    assert all(target[name].equal(before[name]) for name in before)
    assert sync.version == 0


def test_a_component_without_weights_is_told_what_to_have() -> None:
    with pytest.raises(TypeError, match=r"weights\(\)"):
        WeightSync(object(), Named({}))()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transport": "smoke"}, "transport='smoke' is none of 'auto', 'gloo'"),
        ({"timeout": 0}, "timeout must be above 0 seconds, got 0"),
        ({"bucket_bytes": 1000}, r"bucket_bytes=1000 is below 1048576 \(1 MiB\)"),
        ({"silence": -1}, "silence must be above 0 seconds, got -1"),
    ],
)
def test_options_are_checked_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WeightSync(Named({}), Named({}), **options)


def corrupt(component: Component) -> None:
    """Change one byte of what this source puts into its block store, after its checksum was taken."""
    original = SharedBlockStore.get

    def get(block_store: SharedBlockStore, bucket: Any, handle: Any) -> Sequence[Tensor]:
        blocks = original(block_store, bucket, handle)
        blocks[0].view(-1).view(torch.uint8)[0] ^= 1
        return blocks

    setattr(SharedBlockStore, "get", get)  # noqa: B010 - a fault in transit


def test_a_checksum_finds_a_changed_byte(process_workers: Callable[..., Any]) -> None:
    actor, sampler = both_sides(process_workers, (1, None), (2, None))
    sync = WeightSync(actor, sampler, transport="shared", timeout=60.0, checksum=True)
    sync()
    actor.run(refill, 4)
    sampler.call(1, corrupt)
    with pytest.raises(WeightSyncError, match="other bytes"):
        sync()
    assert sampler.run(holds, 0) == [[]] * 2
    assert sync.version == 1


def memory_bytes(component: Component) -> int:
    """What this rank keeps for its syncs."""
    rank_states = [
        rank_state
        for process_state in endpoint._PROCESSES.values()
        for rank_state in process_state.rank_states.values()
    ]
    staged = sum(buffer.numel() for rank_state in rank_states for buffer, _ in rank_state._staging.values())
    ring = sum(
        buffer.numel()
        for process_state in endpoint._PROCESSES.values()
        if process_state._pool
        for buffer in process_state._pool._free
    )
    return staged + ring


def test_no_rank_holds_more_than_its_own_part(process_workers: Callable[..., Any]) -> None:
    actor, sampler = both_sides(process_workers, (3, 0), (2, 0))
    sync = WeightSync(actor, sampler, transport="gloo", timeout=60.0)
    sync()
    whole = sum(values(name, 0).numel() * values(name, 0).element_size() for name in WHOLE)
    assert max(sampler.run(memory_bytes)) < 0.52 * whole
    assert max(actor.run(memory_bytes)) < 0.35 * whole
    sync.close()
    assert sampler.run(memory_bytes) == [0, 0]
