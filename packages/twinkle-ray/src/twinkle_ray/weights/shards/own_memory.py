"""A target's weights are its own memory: copies would take the new values, and the model would keep its old ones."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from twinkle_ray.weights.errors import ManifestError
from twinkle_ray.weights.replacement.replaceable import ReplaceableWeights
from twinkle_ray.weights.replacement.staged import StagedWeights
from twinkle_ray.weights.shards.fingerprint import memory_of
from twinkle_ray.weights.shards.shard import Shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twinkle_ray.weights.shards.shard import Weight, Weights

_SHOWN = 4


def own_memory(first: Weights, weights: Callable[[], Weights]) -> Weights:
    """The result of a target's `weights()`, once it is known to be memory that the component keeps.

    Two calls return the same memory; or new memory each time, which the component itself holds until the next call.

    Args:
        first: The result of one call.
        weights: The component's method, for another call.

    Raises:
        ManifestError: It returns copies; the error names some of them. Or it returns other `StagedWeights` each time.
    """
    second = weights()
    if isinstance(first, StagedWeights) and second is not first:
        raise ManifestError(
            "weights() of the target returns a new StagedWeights at each call, which does not know what an earlier one "
            "was left with: keep one, and return it each time"
        )
    if not all(isinstance(one, Mapping) for one in (first, second)):
        return second  # `hold` raises its error
    elsewhere = [name for name in second if name in first and memory_of(first[name]) != memory_of(second[name])]
    if not elsewhere:
        return second
    lives = {name: [weakref.ref(tensor) for tensor in _tensors(second[name])] for name in elsewhere}
    own = (
        "ReplaceableWeights holds the component's own parameters"
        if isinstance(second, ReplaceableWeights)
        else ("return the parameters themselves, or memory that the component keeps and reads in on_weights()")
    )
    del second
    copies = [name for name, tensors in lives.items() if any(tensor() is None for tensor in tensors)]
    if copies:
        shown = ", ".join(map(repr, copies[:_SHOWN]))
        more = f" and {len(copies) - _SHOWN} more" if len(copies) > _SHOWN else ""
        raise ManifestError(
            f"weights() of the target returns copies: {shown}{more} lie in other memory at each call, and nobody keeps "
            f"it, so that a sync into them would change nothing: {own}"
        )
    return weights()


def _tensors(weight: Weight) -> Iterator[Tensor]:
    for part in [weight] if isinstance(weight, Tensor | Shard) else weight:
        yield part.tensor if isinstance(part, Shard) else part
