"""Refused, never done in silence: trained weights overwritten, copies filled, weights of another model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from torch.nn import Linear, Parameter

from twinkle_ray.weights import ManifestError, Shard, WeightSync, WeightSyncError

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
            "mapping": {"all": optimizer},
        }[place]

    def weights(self) -> dict[str, Any]:
        if self.names == "parameters":
            return dict(self.net.named_parameters())
        if self.names == "shards":
            return {name: Shard(value, value.shape, [0] * value.ndim) for name, value in self.net.named_parameters()}
        return self.net.state_dict()


@pytest.mark.parametrize(
    ("place", "names"), [("attribute", "parameters"), ("list", "shards"), ("mapping", "state_dict")]
)
def test_a_target_that_is_trained_is_refused(place: str, names: str) -> None:
    target = Trainer(place, names)
    before = target.net.weight.detach().clone()
    with pytest.raises(ManifestError, match="trains its weights"):
        WeightSync(Plain(5.0), target)()
    assert torch.equal(target.net.weight, before)


def test_an_optimizer_of_other_tensors_is_no_training_of_these() -> None:
    target = Plain()
    target.optimizer = torch.optim.SGD(Linear(2, 2).parameters(), lr=0.1)  # type: ignore[attr-defined]  # set later, as users do
    assert WeightSync(Trainer("attribute"), target)() == 1


COPIES: dict[str, Callable[[Tensor], Any]] = {
    "clone": lambda value: value.detach().clone(),
    "transposed": lambda value: value.detach().t().contiguous().t(),
    "shards": lambda value: [Shard(value.detach().clone(), value.shape, [0] * value.ndim)],
    "parameter": lambda value: Parameter(value.detach().clone()),
}


class Copies(Plain):
    """A target whose weights are made anew at each call."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def weights(self) -> dict[str, Any]:
        own = dict(self.net.named_parameters())
        return {**own, "weight": COPIES[self.how](own["weight"])}


@pytest.mark.parametrize("how", COPIES)
def test_a_target_that_returns_copies_is_found_out(how: str) -> None:
    target = Copies(how)
    for fill in (0.0, 5.0):  # also where they have the values of the source
        with pytest.raises(WeightSyncError, match="returns copies: 'weight'"):
            WeightSync(Plain(fill), target)()


class Standing(Plain):
    """Weights that tell what they stand on."""

    def __init__(self, **facts: str) -> None:
        super().__init__()
        self.facts = facts

    def weight_metadata(self) -> dict[str, str]:
        return self.facts


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
