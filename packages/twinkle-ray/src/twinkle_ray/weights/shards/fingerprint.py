"""Whether `weights()` returned the same memory again."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn import Parameter

from twinkle_ray.weights.shards.dtensor import is_dtensor
from twinkle_ray.weights.shards.shard import Shard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_ray.weights.shards.shard import Weights

_dtype = attrgetter("dtype")


class Fingerprint:
    """The memory and the layout of one result of `weights()`; cheap to compare with the next.

    It keeps the memory of tensors and Shards alive; that of DTensors the caller does, so that no other tensor gets
    their addresses.

    Args:
        weights: The result.
    """

    def __init__(self, weights: Weights) -> None:
        self._names = [name for name, _ in weights.items()]
        values = [weight for _, weight in weights.items()]
        self._parameters = list(map(_parameter, values))
        tensors, self._layouts = _tensors(values)
        self._plain = None if tensors is None else [tensor.detach() for tensor in tensors]
        self._dtypes = list(map(_dtype, self._plain or ()))
        self._memory = list(map(memory_of, values)) if tensors is None else []

    def matches(self, weights: Weights, *, same_parameters: bool) -> bool:
        """Whether a later result has the same memory and layout.

        Args:
            weights: The later result.
            same_parameters: Whether its parameters must be the same objects, too.
        """
        if not isinstance(weights, Mapping):
            return False  # `hold` raises its error
        values = [weight for _, weight in weights.items()]
        if [name for name, _ in weights.items()] != self._names:
            return False
        if same_parameters and not all(map(is_, map(_parameter, values), self._parameters)):
            return False
        tensors, layouts = _tensors(values)
        if tensors is None or self._plain is None:
            return tensors is self._plain and list(map(memory_of, values)) == self._memory
        same = layouts == self._layouts and list(map(_dtype, tensors)) == self._dtypes
        return same and all(map(Tensor.is_set_to, tensors, self._plain))  # a model has thousands


def _parameter(weight: object) -> object:
    """The parameter itself, also of a Shard; None for another tensor."""
    if type(weight) is Shard:
        weight = weight.tensor
    return weight if type(weight) is Parameter else None


def _tensors(values: Sequence[Any]) -> tuple[list[Any] | None, list[object]]:
    """The tensors of weights that are plain tensors and Shards, and where the Shards lie; None for other weights."""
    kinds = set(map(type, values))
    if kinds <= {Parameter, Tensor}:
        return [*values], []
    if not kinds <= {Parameter, Tensor, Shard}:
        return None, []
    tensors = [value.tensor if type(value) is Shard else value for value in values]
    if not {type(tensor) for tensor in tensors} <= {Parameter, Tensor}:
        return None, []
    layouts: list[object] = [
        (tuple(value.global_shape), tuple(value.offset)) if type(value) is Shard else None for value in values
    ]
    return tensors, layouts


def memory_of(weight: object) -> tuple[object, ...]:
    """Where a weight's elements are, and how: equal for two that share them, as long as both are alive."""
    if is_dtensor(weight):
        return (*memory_of(weight._local_tensor), weight.shape, weight.placements, weight.device_mesh)
    if isinstance(weight, Tensor):
        return (weight.data_ptr(), weight.shape, weight.stride(), weight.dtype)
    if isinstance(weight, Shard):
        return (*memory_of(weight.tensor), tuple(weight.global_shape), tuple(weight.offset))
    return tuple(map(memory_of, weight)) if isinstance(weight, list | tuple) else (object(),)
