"""Divides a model over a layout: experts and layers by Transformers' plans, then sharded and replicated by FSDP2."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from twinkle_engines.parallel.digests import digest_tensor
from twinkle_engines.parallel.expert_parallel import check_expert_parallel, expert_plan, split_experts
from twinkle_engines.parallel.tensor_parallel import split_layers

_MOST = 1 << 62

if TYPE_CHECKING:
    from twinkle_engines.parallel.model_layout import ModelLayout


def divide(model: Any, layout: ModelLayout, compute_dtype: torch.dtype | None) -> list[nn.Parameter]:
    """Divide a whole model over the layout, in place, and move it to its device; one rank keeps it as it is.

    FSDP2 computes in another dtype than that of the parameters, also on one rank.

    Args:
        model: The model, alike on all ranks.
        layout: dp replicates, fsdp shards, tp divides layers; ep divides experts, which FSDP2 shards over the ranks
            that hold the same ones.
        compute_dtype: Dtype of the forward and backward pass, where it is not that of the parameters.

    Returns:
        Parameters that each tensor-parallel rank holds whole, with gradients that have to be summed over tp.

    Raises:
        ValueError: The model cannot be divided so, or ranks have built different ones.
    """
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    if layout.world_size == 1 and compute_dtype is None:
        model.to(layout.device)
        return []
    check_alike(model, layout)
    apart = expert_plan(model) if layout.experts is not None else {}
    if layout.ep_size > 1:
        check_expert_parallel(model, layout.ep_size)
    # torch makes other objects of the parameters that it divides, so the experts come first and the rest after.
    experts = split_experts(model, layout.experts["ep"], layout.mesh["tp"]) if layout.experts and apart else []
    partial = split_layers(model, layout.mesh["tp"], apart) if layout.tp_size > 1 else []
    whole = {id(parameter) for parameter in partial}
    names = [name for name, parameter in model.named_parameters() if id(parameter) in whole]
    model.to(layout.device)
    short = any(one.requires_grad and one.dtype.itemsize < torch.float32.itemsize for one in model.parameters())
    wide = torch.float32 if compute_dtype or short else None  # sums over ranks
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=wide)
    for part in experts:
        part.register_forward_hook(_copied)
        fully_shard(part, mesh=layout.experts["ep_shard"], mp_policy=policy)  # type: ignore[index]  # there are experts
    for part in (*_own_layers(model), model):
        part.register_forward_hook(_copied)
        fully_shard(part, mesh=layout.mesh["dp", "fsdp"], mp_policy=policy)
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)  # gradients are sums over ranks: `step` divides by what counted
            part.set_force_sum_reduction_for_comms(True)
    return [parameter for name, parameter in model.named_parameters() if name in set(names)]


def reshard(model: Any) -> None:
    """Let go of what a forward pass has gathered: without a backward pass the root of a divided model keeps it."""
    from torch.distributed.fsdp import FSDPModule

    if isinstance(model, FSDPModule):
        model.reshard()


@torch.no_grad()
def check_alike(model: nn.Module, layout: ModelLayout) -> None:
    """Raise where ranks have built different models; all ranks call this.

    Raises:
        ValueError: A parameter or a buffer is not the same on all ranks, or some ranks have others.
    """
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    kinds = [(name, tuple(one.shape), str(one.dtype), one.requires_grad) for name, one in held.items()]
    same = _same_on_all([zlib.crc32(repr(kinds).encode())], layout)
    if not all(same):
        raise ValueError(
            f"ranks have built different models: this one has {len(held)} parameters and buffers, and others have "
            "other names, shapes, dtypes or requires_grad; use a function that builds the same model on every rank"
        )
    same = _same_on_all([digest_tensor(one) for one in held.values()], layout)
    different = [name for name, alike in zip(held, same, strict=True) if not alike]
    if different:
        raise ValueError(
            f"ranks have built different models: {len(different)} of {len(held)} parameters and buffers, such as "
            f"{different[0]}, are not alike; a function that builds a model with random weights seeds torch first: use "
            "torch.manual_seed(0) in it"
        )


def _same_on_all(values: list[int], layout: ModelLayout) -> list[bool]:
    """Whether each whole number is the same on all ranks."""
    mine = torch.tensor([value % _MOST for value in values], dtype=torch.int64, device=layout.device)
    low, high = mine.clone(), mine.clone()
    dist.all_reduce(low, op=dist.ReduceOp.MIN)
    dist.all_reduce(high, op=dist.ReduceOp.MAX)
    same: list[bool] = (low == high).tolist()
    return same


def _copied(module: nn.Module, inputs: object, output: Any) -> Any:
    """The output as tensors of their own: FSDP2 loses sight of a view that the model then adds to in place."""
    if isinstance(output, tuple) and type(output) is tuple:
        return tuple(_copied(module, inputs, part) for part in output)
    is_view = isinstance(output, torch.Tensor) and output._base is not None
    return output.clone() if is_view else output


def _own_layers(model: nn.Module) -> list[nn.Module]:
    """The layers that share no parameter with the rest; those that do, as Zamba's, are divided with the whole model."""
    layers = _layers(model)
    users: dict[int, set[int]] = {}
    inside: set[str] = set()
    names = {id(part): name for name, part in model.named_modules()}
    for number, layer in enumerate(layers):
        for name, parameter in layer.named_parameters(remove_duplicate=False):
            users.setdefault(id(parameter), set()).add(number)
            inside.add(f"{names[id(layer)]}.{name}")
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name not in inside:
            users.setdefault(id(parameter), set()).add(-1)
    shared = {number for numbers in users.values() if len(numbers) > 1 for number in numbers}
    return [layer for number, layer in enumerate(layers) if number not in shared]


def _layers(model: nn.Module) -> list[nn.Module]:
    """The model's layers: the members of its outermost lists of modules."""
    found: list[nn.Module] = []
    for part in model.children():
        found += list(part) if isinstance(part, nn.ModuleList) else _layers(part)
    return found
