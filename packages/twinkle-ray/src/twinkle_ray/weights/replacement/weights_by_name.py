"""WeightsByName: the mapping that a target's special kinds of weights are."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping
from typing import TypeVar

from twinkle_ray.weights.shards.shard import Weight

W_co = TypeVar("W_co", bound=Weight, covariant=True)


class WeightsByName(Mapping[str, W_co]):
    """Weights by name.

    Args:
        weights: Each tensor, DTensor or `Shard` by name.
        facts: What the weights stand on, by what it is, such as a digest of the base of adapters. A sync compares what
            both sides report, and refuses what differs.
    """

    def __init__(self, weights: Mapping[str, W_co], facts: Mapping[str, str] | None = None) -> None:
        self._weights = weights
        self.facts = dict(facts or {})

    def __getitem__(self, name: str) -> W_co:
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def items(self) -> ItemsView[str, W_co]:
        """Each name with its weight."""
        return self._weights.items()
