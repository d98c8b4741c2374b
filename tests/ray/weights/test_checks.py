"""Refused, never done in silence: trained weights overwritten, copies filled, one of two values sent, or no number."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from torch.nn import Linear, Parameter

from twinkle_ray.weights import ManifestError, ReplaceableWeights, Shard, WeightSync, WeightSyncError

if TYPE_CHECKING:
    from collections.abc import Callable


class Plain:
    """A model without anything that trains it."""

    def __init__(self, fill: float = 0.0) -> None:
        self.net = Linear(3, 2)
        torch.nn.init.constant_(self.net.weight, fill)
        torch.nn.init.constant_(self.net.bias, fill)

    def weights(self) -> dict[str, Any]:
        return dict(self.net.named_parameters())


class Held:
    """What holds an optimizer, some objects away from the component."""

    __slots__ = ("inner",)

    def __init__(self, inner: object) -> None:
        self.inner = inner


class Trainer(Plain):
    """A model with an optimizer, at one of the places where components keep it."""

    def __init__(self, place: str, names: str = "parameters") -> None:
        super().__init__()
        self.names = names
        kind = torch.optim.AdamW if place == "list" else torch.optim.SGD
        optimizer = kind(self.net.parameters(), lr=0.1)
        self.kept: Any = {
            "attribute": optimizer,
            "list": [optimizer],
            "mapping": {"optimizers": {"all": optimizer}},
            "object": Held(Held(optimizer)),
            "schedule": torch.optim.lr_scheduler.ConstantLR(optimizer),
            "gradient": None,
        }[place]
        if place == "gradient":
            self.net(torch.ones(1, 3)).sum().backward()

    def weights(self) -> dict[str, Any]:
        if self.names == "parameters":
            return dict(self.net.named_parameters())
        if self.names == "shards":
            return {name: Shard(value, value.shape, [0] * value.ndim) for name, value in self.net.named_parameters()}
        return self.net.state_dict()


@pytest.mark.parametrize("names", ["parameters", "shards", "state_dict"])
@pytest.mark.parametrize("place", ["attribute", "list", "mapping", "object", "schedule", "gradient"])
def test_a_target_that_is_trained_is_refused_unless_told(place: str, names: str) -> None:
    if (place, names) == ("gradient", "state_dict"):
        pytest.skip("what state_dict() returns has no gradient")
    target = Trainer(place, names)
    before = target.net.weight.detach().clone()
    with pytest.raises(ManifestError, match="overwrite_trained=True"):
        WeightSync(Plain(5.0), target)()
    assert torch.equal(target.net.weight, before)
    assert WeightSync(Plain(5.0), target, overwrite_trained=True)() == 1
    assert (target.net.weight == 5.0).all()


def test_training_that_begins_between_two_syncs_is_seen() -> None:
    target = Plain()
    sync = WeightSync(Plain(5.0), target)
    assert sync() == 1
    target.optimizer = torch.optim.SGD(target.net.parameters(), lr=0.1)  # type: ignore[attr-defined]  # set later, as users do
    with pytest.raises(ManifestError, match="SGD"):
        sync()


def test_an_optimizer_of_other_tensors_is_no_training_of_these() -> None:
    target = Plain()
    target.optimizer = torch.optim.SGD(Linear(2, 2).parameters(), lr=0.1)  # type: ignore[attr-defined]  # set later, as users do
    assert WeightSync(Trainer("attribute"), target)() == 1


class Copies(Plain):
    """A target whose weights are made anew at each call."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.versions: list[int] = []
        self.buffers: dict[str, Tensor] = {}

    def weights(self) -> dict[str, Any]:
        own = dict(self.net.named_parameters())
        if self.how == "kept":
            self.buffers = {name: torch.zeros_like(value) for name, value in own.items()}
            return self.buffers
        made: dict[str, Callable[[Tensor], Any]] = {
            "clone": lambda value: value.detach().clone(),
            "numpy": lambda value: torch.from_numpy(value.detach().numpy().copy()),
            "dtype": lambda value: value.detach().double().float(),
            "transposed": lambda value: value.detach().t().contiguous().t(),
            "shard": lambda value: Shard(value.detach().clone(), value.shape, [0] * value.ndim),
            "shards": lambda value: [Shard(value.detach().clone(), value.shape, [0] * value.ndim)],
            "parameter": lambda value: Parameter(value.detach().clone()),
        }
        name = "weight"
        return {**own, name: made[self.how](own[name])}

    def on_weights(self, version: int) -> None:
        self.versions.append(version)
        for name, value in self.buffers.items():
            self.net.get_parameter(name).data.copy_(value)


@pytest.mark.parametrize("how", ["clone", "numpy", "dtype", "transposed", "shard", "shards", "parameter"])
@pytest.mark.parametrize("fill", [0.0, 5.0], ids=["equal", "other"])
def test_a_target_that_returns_copies_is_found_out(how: str, fill: float) -> None:
    target = Copies(how)
    with pytest.raises(WeightSyncError, match="returns copies: 'weight'"):
        WeightSync(Plain(fill), target)()
    assert target.versions == []


def test_new_memory_that_the_target_keeps_is_taken() -> None:
    target = Copies("kept")
    sync = WeightSync(Plain(5.0), target)
    for version in (1, 2, 3):
        assert sync() == version
        assert (target.net.weight == 5.0).all() and target.versions[-1] == version


class Tensors:
    def __init__(self, **tensors: Any) -> None:
        self.tensors = tensors

    def weights(self) -> dict[str, Any]:
        return self.tensors


@pytest.mark.parametrize("seed", range(30))
def test_overlapping_shards_of_one_rank_arrive_or_are_refused(seed: int) -> None:
    draw = random.Random(seed)
    shape = (draw.randint(1, 6), draw.randint(1, 6))
    whole = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(
        draw.choice([torch.float32, torch.bfloat16, torch.float64, torch.complex64])
    )
    boxes = [((0, 0), shape), *(_box(draw, shape) for _ in range(draw.randint(1, 4)))]

    def shards(of: Tensor) -> list[Shard]:
        return [Shard(of[a : a + h, b : b + w].clone(), shape, (a, b)) for (a, b), (h, w) in boxes]

    source, target = Tensors(w=shards(whole)), Tensors(w=shards(torch.zeros_like(whole)))
    WeightSync(source, target)()
    for want, have in zip(shards(whole), target.tensors["w"], strict=True):
        assert torch.equal(want.tensor, have.tensor)
    draw.choice(source.tensors["w"][1:]).tensor.view(-1)[0] += 1
    kept = [shard.tensor.clone() for shard in target.tensors["w"]]
    with pytest.raises(ManifestError, match=r"'w' at .* on rank 0"):
        WeightSync(source, target)()
    assert all(torch.equal(one, shard.tensor) for one, shard in zip(kept, target.tensors["w"], strict=True))


def _box(draw: random.Random, shape: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    offset = draw.randrange(shape[0]), draw.randrange(shape[1])
    return offset, (draw.randint(1, shape[0] - offset[0]), draw.randint(1, shape[1] - offset[1]))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "bfloat16", "complex64", "float8_e5m2", "float8_e4m3fn"]
)
def test_values_that_are_not_finite_are_refused_or_told(
    value: float, dtype: str, caplog: pytest.LogCaptureFixture
) -> None:
    if dtype == "float8_e4m3fn":
        value = float("nan")  # it has no infinity
    kind = getattr(torch, dtype)
    bad = torch.tensor([[1.0, 2.0], [3.0, value]]).to(kind)
    good = torch.ones(3)
    target = Tensors(w=torch.zeros(2, 2).to(kind), good=torch.zeros(3))
    with pytest.raises(WeightSyncError, match=r"not finite.*'w' on rank 0"):
        WeightSync(Tensors(w=bad, good=good), target, check="always")()
    assert not target.tensors["good"].any()
    assert WeightSync(Tensors(w=bad, good=good), target)() == 1
    assert "'w' on rank 0" in caplog.text


def test_values_that_the_conversion_makes_infinite_are_refused() -> None:
    source, target = Tensors(w=torch.tensor([1e30])), Tensors(w=torch.zeros(1, dtype=torch.float16))
    with pytest.raises(WeightSyncError, match="not finite"):
        WeightSync(source, target, convert=True, check="always")()


def test_values_that_become_bad_later_are_refused_and_the_next_sync_works() -> None:
    weight, target = torch.ones(4), Tensors(w=torch.zeros(4))
    sync = WeightSync(Tensors(w=weight, n=torch.ones(2, dtype=torch.int64)), target, check="always", select="w")
    assert sync() == 1
    weight[2] = float("nan")
    with pytest.raises(WeightSyncError, match="not finite"):
        sync()
    assert target.tensors["w"].tolist() == [1.0] * 4
    weight.fill_(3.0)
    assert sync() == 2 and target.tensors["w"].tolist() == [3.0] * 4


class Standing(Plain):
    """Weights that tell what they stand on."""

    def __init__(self, **facts: str) -> None:
        super().__init__()
        self.facts = facts

    def weights(self) -> Any:
        return ReplaceableWeights(super().weights(), self.facts)


@pytest.mark.parametrize(
    ("sent", "written", "refused"),
    [
        ({"base": "1"}, {"base": "1", "more": "2"}, False),
        ({"base": "1"}, {}, False),
        ({"base": "1"}, {"base": "2"}, True),
    ],
)
def test_what_both_sides_stand_on_is_compared(sent: dict[str, str], written: dict[str, str], refused: bool) -> None:
    sync = WeightSync(Standing(**sent), Standing(**written))
    if not refused:
        sync()
        return
    for _ in range(2):
        with pytest.raises(ManifestError, match="base"):
            sync()
