"""Whether a component trains the tensors that a sync would write: asked of its parameters and optimizers."""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn import Module, Parameter

from twinkle_ray.weights.shards.dtensor import is_dtensor
from twinkle_ray.weights.shards.shard import Shard

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from twinkle_ray.weights.shards.shard import Weights

_MOST_OBJECTS = 2_000
_SCALARS = (str, bytes, int, float, complex, bool, type(None), type)


def why_trained(instance: object, weights: Weights) -> str:
    """The sign that a component trains its weights; "" where there is none.

    Told by a gradient of a parameter, and by an optimizer that the component holds, directly or in its own objects,
    lists and mappings, over memory that the sync would write.

    Args:
        instance: The component.
        weights: The result of its `weights()`.
    """
    named = [(name, tensor) for name, weight in weights.items() for tensor in _tensors(weight)]
    for name, tensor in named:
        if isinstance(tensor, Parameter) and tensor.requires_grad and tensor.grad is not None:
            return f"{name!r} has a gradient"
    optimizers = list(_optimizers(instance))
    if not optimizers:
        return ""
    written = {_address(tensor): name for name, tensor in named if _address(tensor)}
    for optimizer in optimizers:
        held = [tensor for group in optimizer.param_groups for tensor in group["params"]]
        names = [written[address] for address in map(_address, held) if address in written]
        if names:
            return f"{len(names)} of its tensors, such as {names[0]!r}, are those of its {type(optimizer).__name__}"
    return ""


def _tensors(weight: Any) -> Iterator[Tensor]:
    for part in [weight] if isinstance(weight, Tensor | Shard) else weight:
        yield part.tensor if isinstance(part, Shard) else part


def _address(tensor: Tensor) -> int:
    local = tensor.to_local().detach() if is_dtensor(tensor) else tensor
    return local.data_ptr() if local.numel() and local.device.type != "meta" else 0


def _optimizers(instance: object) -> Iterator[Any]:
    """The optimizers that an object holds; modules and tensors are not looked into, and no more than 2,000 objects."""
    kind = getattr(sys.modules.get("torch.optim"), "Optimizer", None)
    if kind is None:
        return
    waiting: deque[object] = deque([*vars(instance).values()] if hasattr(instance, "__dict__") else [])
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_OBJECTS:
        one = waiting.popleft()
        if id(one) in seen or isinstance(one, (*_SCALARS, Tensor, Module)):
            continue
        seen.add(id(one))
        if isinstance(one, kind):
            yield one
        else:
            waiting.extend(_held_by(one))


def _held_by(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list | tuple | set | frozenset):
        return value
    slots = [getattr(value, name, None) for kind in type(value).__mro__ for name in _slots(kind)]
    return [*getattr(value, "__dict__", {}).values(), *slots]


def _slots(kind: type) -> list[str]:
    names = kind.__dict__.get("__slots__", ())
    return [names] if isinstance(names, str) else [name for name in names if not name.startswith("__")]
