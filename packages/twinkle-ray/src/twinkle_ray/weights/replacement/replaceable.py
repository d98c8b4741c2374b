"""ReplaceableWeights: a target's way to let a sync replace the memory of its parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn import Parameter

from twinkle_ray.weights.replacement.weights_by_name import W_co, WeightsByName
from twinkle_ray.weights.shards.shard import Shard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinkle_ray.weights.shards.shard import Weight
    from twinkle_ray.weights.shards.specs import LocalShards


class ReplaceableWeights(WeightsByName[W_co]):
    """Weights whose parameters a sync gives new memory, in place of writing their values.

    A target returns it from `weights()`. What has arrived becomes the memory of the parameters, and the old memory is
    what a failed sync goes back to: nothing is put aside and nothing is copied. The parameters stay the same objects;
    only their `data` changes. From the second sync on two memories take turns. On one host, replicas share the pages
    that none of them writes to.

    Replaced are contiguous `torch.nn.Parameter` objects, also in a `Shard`, that fill a storage of their own. All other
    tensors (DTensors, buffers, parts of a fused parameter) are written in place, as without this class. So give the
    parameters themselves, not what `state_dict()` returns without `keep_vars=True`.

    Only for components where nobody keeps the address or a view of a parameter over a sync: no CUDA graph, no engine
    with pointers of its own, no flattened or fused copy.

    Args:
        weights: Each tensor, DTensor or `Shard` by name.
        facts: What the weights stand on, by what it is, such as a digest of the base of adapters. A sync compares what
            both sides report, and refuses what differs.
    """


def replaceable_parameters(weights: Mapping[str, Weight], local_shards: LocalShards) -> dict[str, list[Parameter]]:
    """The parameters that a sync may give new memory, by the first of the names that share it.

    Args:
        weights: The result of `weights()`.
        local_shards: The same, read.
    """
    shared = {name for spec in local_shards.rank_specs for name in (spec.overlaps and (spec.name, *spec.overlaps))}
    together: dict[str, list[Tensor]] = {}
    for spec in local_shards.rank_specs:
        weight = weights[spec.name]
        tensor = weight.tensor if isinstance(weight, Shard) else weight
        if isinstance(tensor, Tensor) and len(local_shards.pieces[spec.name]) == 1:
            together.setdefault(spec.tie, []).append(tensor)
        else:
            shared.add(spec.tie)
    found: dict[str, list[Parameter]] = {}
    for name, tensors in together.items():
        parameters = [tensor for tensor in tensors if type(tensor) is Parameter and _fills_its_storage(tensor)]
        if len(parameters) == len(tensors) and name not in shared:
            found[name] = list({id(parameter): parameter for parameter in parameters}.values())
    return found


def _fills_its_storage(tensor: Tensor) -> bool:
    whole = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
    return whole and not tensor.is_inference()
