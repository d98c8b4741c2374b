"""Divides a model over a layout: layers by Transformers' plan over tp, then sharded and replicated by FSDP2.

Invariant: after `divide` the gradient of each parameter, once `sum_partial` has been called, is the sum over all data.
"""

from __future__ import annotations

import math
import re
import zlib
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ParallelStyle

    from twinkle_engines.models.layout import ModelLayout

_PARTIAL = "replicated_with_grad_allreduce"
"""The plan's style of parameters that each rank holds whole, and whose gradients are sums over the ranks."""
_APART = 1e-3
"""The share of a gradient's norm by which replicas may differ."""


def plain_model(model: Any) -> Any:
    """The model itself, where peft has put it into one with adapters."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def divide(
    model: Any, layout: ModelLayout, compute_dtype: torch.dtype | None, is_read: bool = True
) -> list[nn.Parameter]:
    """Divide a whole model over the layout, in place, and move it to its device; one rank keeps it as it is.

    FSDP2 computes in another dtype than that of the parameters, also on one rank.

    Args:
        model: The model, alike on all ranks.
        layout: dp replicates, fsdp shards, tp divides layers.
        compute_dtype: Dtype of the forward and backward pass, where it is not that of the parameters.
        is_read: Whether the weights are there; else the ranks' ones are of the same files, and read later.

    Returns:
        Parameters that each tensor-parallel rank holds whole, with gradients that have to be summed over tp.

    Raises:
        ValueError: The model cannot be divided so, or ranks have built different ones.
    """
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    if layout.world_size == 1 and compute_dtype is None:
        model.to(layout.device)
        return []
    _check_alike(model, layout, is_read)
    partial = {id(one) for one in _split_layers(model, layout.mesh["tp"])} if layout.tp_size > 1 else set()
    names = {name for name, one in model.named_parameters() if id(one) in partial}
    if is_read:
        model.to(layout.device)  # else FSDP2 moves each part once it is divided
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32 if compute_dtype else None)
    for part in (*_own_layers(model), model):
        part.register_forward_hook(_copied)
        fully_shard(part, mesh=layout.mesh["dp", "fsdp"], mp_policy=policy)
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)  # gradients are sums over ranks: `step` divides by what counted
            part.set_force_sum_reduction_for_comms(True)
    return [parameter for name, parameter in model.named_parameters() if name in names]


def reshard(model: Any) -> None:
    """Let go of what a forward pass has gathered: without a backward pass the root of a divided model keeps it."""
    from torch.distributed.fsdp import FSDPModule

    if isinstance(model, FSDPModule):
        model.reshard()


@torch.no_grad()
def _check_alike(model: nn.Module, layout: ModelLayout, is_read: bool) -> None:
    """Raise where ranks have built different models, by names, shapes and a sum of all values; all ranks call this."""
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    kinds = [(name, tuple(one.shape), str(one.dtype), one.requires_grad) for name, one in held.items()]
    there = [one for one in held.values() if is_read or (one.requires_grad and hasattr(model, "peft_config"))]
    total = sum(float(one.double().abs().sum()) * (1 + i % 97) for i, one in enumerate(there))
    for value in (float(zlib.crc32(repr(kinds).encode())), total):
        most, least = layout.max_over_all(value), -layout.max_over_all(-value)
        if most - least <= 1e-9 * most:  # sums differ by rounding where ranks have other numbers of threads
            continue
        raise ValueError(
            "ranks have built different models: names, shapes or values of their parameters differ; a function that "
            "builds a model with random weights seeds torch first: use torch.manual_seed(0) in it"
        )


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
    inside: dict[str, int] = {}
    names = {id(part): name for name, part in model.named_modules()}
    for number, layer in enumerate(layers):
        inside |= {f"{names[id(layer)]}.{name}": number for name, _ in layer.named_parameters(remove_duplicate=False)}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        users.setdefault(id(parameter), set()).add(inside.get(name, -1))
    shared = {number for numbers in users.values() if len(numbers) > 1 for number in numbers}
    return [layer for number, layer in enumerate(layers) if number not in shared]


def _layers(model: nn.Module) -> list[nn.Module]:
    """The model's layers: the members of its outermost lists of modules."""
    found: list[nn.Module] = []
    for part in model.children():
        found += list(part) if isinstance(part, nn.ModuleList) else _layers(part)
    return found


def _split_layers(model: Any, mesh: DeviceMesh) -> list[nn.Parameter]:
    """Divide the layers over tp, in place.

    Returns:
        The parameters that each rank holds whole, with gradients that have to be summed over tp.
    """
    from torch.distributed.tensor.parallel import parallelize_module

    check_tensor_parallel(model, mesh.size())
    tables = [model.get_input_embeddings(), model.get_output_embeddings()]
    tied = all(tables) and tables[0].weight is tables[1].weight
    used, styles = _used_plan(model), _styles()
    plan = {name: styles[style] for name, style in used.items() if style in styles}
    parallelize_module(model, mesh, plan, src_data_rank=None)  # all ranks have built the same
    if tied:
        tables[1].weight = tables[0].weight
    partial = [model.get_submodule(name) for name, style in used.items() if style == _PARTIAL]
    return [parameter for module in partial for parameter in module.parameters() if parameter.requires_grad]


def check_tensor_parallel(model: Any, tp_size: int) -> None:
    """Raise for a model with adapters, or without a plan that torch's styles can follow, or whose heads do not fit."""
    if hasattr(model, "peft_config"):
        raise ValueError(f"adapters are not divided over tp_size={tp_size}: use tp_size=1, with fsdp")
    kind = type(model).__name__
    if not getattr(model, "tp_plan", None):
        raise ValueError(
            f"{kind} is not divided over tp_size={tp_size}: Transformers has no plan for it; use tp_size=1, with fsdp"
        )
    strange = set(_used_plan(model).values()) - {*_styles(), _PARTIAL}
    if strange:
        raise ValueError(
            f"{kind} is not divided over tp_size={tp_size}: torch has no {', '.join(sorted(strange))}, which are "
            "styles of its plan; use tp_size=1, with fsdp"
        )
    config = model.config.get_text_config()
    counts = [config.num_attention_heads, getattr(config, "num_key_value_heads", None) or config.num_attention_heads]
    if any(count % tp_size for count in counts):
        fit = [str(size) for size in range(1, min(counts) + 1) if not any(count % size for count in counts)]
        raise ValueError(
            f"tp_size={tp_size} does not divide the {counts[0]} attention heads and {counts[1]} key-value heads of "
            f"{kind}; use {' or '.join(fit)}"
        )


def _used_plan(model: Any) -> dict[str, str]:
    """The style of each module that the plan names, and of parameters that it names by themselves.

    A head of one number is not divided.
    """
    patterns = [(re.escape(one).replace(r"\*", r"\d+"), style) for one, style in model.tp_plan.items()]
    output = model.get_output_embeddings()
    whole = output if output is not None and len(output.weight) == 1 else None
    names = [name for name, part in model.named_modules() if part is not whole]
    names += [name for name, _ in model.named_parameters()]
    return {name: style for name in names for pattern, style in patterns if re.fullmatch(pattern, name)}


def _styles() -> dict[str, ParallelStyle]:
    """Torch's styles by the names of Transformers' plans."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    whole = Replicate()
    return {
        "colwise": ColwiseParallel(),
        "rowwise": RowwiseParallel(),
        "colwise_gather_output": ColwiseParallel(output_layouts=whole),
        "colwise_rep": ColwiseParallel(output_layouts=whole),
        "rowwise_split_input": RowwiseParallel(input_layouts=whole),
        "rowwise_rep": RowwiseParallel(input_layouts=whole),
        "embedding_rowwise": RowwiseParallel(input_layouts=whole),
    }


@torch.no_grad()
def sum_partial(parameters: Iterable[nn.Parameter], group: ProcessGroup) -> None:
    """Sum the gradients of parameters that each rank holds whole over the ranks of a group, in place."""
    for gradient in (one.grad for one in parameters if one.grad is not None):
        dist.all_reduce(_local(gradient), group=group)


@torch.no_grad()
def check_replicas(model: nn.Module, layout: ModelLayout) -> None:
    """Raise where ranks of a tp group have other gradients of a parameter that each of them holds whole.

    Between divided layers each rank sees its own part of the activations, so its gradient is a part of the whole where
    the plan does not name the parameter. All ranks call this.
    """
    group, apart = layout.mesh.get_group("tp"), ""
    for name, one in model.named_parameters():
        if one.grad is None or (isinstance(one, DTensor) and "tp" in (one.device_mesh.mesh_dim_names or ())):
            continue
        norms = [torch.zeros((), dtype=torch.float64, device=layout.device) for _ in range(layout.tp_size)]
        dist.all_gather(norms, _local(one.grad).double().norm(), group=group)
        if max(norms) - min(norms) > _APART * max(norms):
            apart = apart or name
    if layout.max_over_all(float(bool(apart))):
        raise ValueError(
            f"the gradient of {apart or 'a parameter'} differs between ranks of tp, which hold it whole: it lies "
            "between divided layers, and Transformers' plan does not name it; use tp_size=1, with fsdp"
        )


@torch.no_grad()
def clip(gradients: Sequence[Tensor], limit: float | None) -> float:
    """Scale the gradients so that their norm is at most the limit, and return the norm before."""
    groups: dict[object, list[Tensor]] = {}
    for gradient in gradients:
        groups.setdefault(gradient.device_mesh if isinstance(gradient, DTensor) else None, []).append(gradient)
    norms = [get_total_norm(group) for group in groups.values()]
    whole = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    total = torch.linalg.vector_norm(torch.stack(whole)).item() if whole else 0.0
    if limit is not None and math.isfinite(total) and total > limit:
        for gradient in gradients:
            gradient.mul_(limit / (total + 1e-6))  # torch's own rule
    return total


def _local(values: Tensor) -> Tensor:
    return values.to_local() if isinstance(values, DTensor) else values
