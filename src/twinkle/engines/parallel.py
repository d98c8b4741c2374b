"""Divides a model over a layout: tensor parallel by Transformers' plan, then sharded and replicated by FSDP2."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    import torch
    from torch.distributed.tensor.parallel import ParallelStyle
    from transformers import PreTrainedModel

    from twinkle.engines.model_layout import ModelLayout

Model = Any  # a PreTrainedModel or a PeftModel that FSDP2 has made an FSDPModule too

PARTIAL = "replicated_with_grad_allreduce"
"""The plan's style of parameters that each rank holds whole, and whose gradients are sums over the ranks."""


def divide(model: PreTrainedModel, layout: ModelLayout, compute_dtype: torch.dtype | None) -> list[nn.Parameter]:
    """Divide a whole model over the layout, in place, and move it to its device.

    Args:
        model: The model, alike on all ranks.
        layout: dp replicates, fsdp shards, tp divides layers.
        compute_dtype: Dtype of the forward and backward pass, where it is not that of the parameters.

    Returns:
        Parameters that each tensor-parallel rank holds whole, with gradients that have to be summed over tp.
    """
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    partial = _split_layers(model, layout) if layout.tp_size > 1 else []
    model.to(layout.device)  # type: ignore[arg-type]  # typed as if it took no device
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32 if compute_dtype else None)
    mesh = layout.mesh["dp", "fsdp"]
    for part in (*_layers(model), model):
        fully_shard(part, mesh=mesh, mp_policy=policy)
    for part in model.modules():
        if isinstance(part, torch.distributed.fsdp.FSDPModule):
            part.set_gradient_divide_factor(1.0)  # gradients are sums over ranks: `step` divides by what counted
            part.set_force_sum_reduction_for_comms(True)
    names = set(partial)
    return [parameter for name, parameter in model.named_parameters() if name in names]


def _layers(model: nn.Module) -> list[nn.Module]:
    """The model's layers: the members of its outermost lists of modules."""
    found: list[nn.Module] = []
    for part in model.children():
        found += list(part) if isinstance(part, nn.ModuleList) else _layers(part)
    return found


def _split_layers(model: PreTrainedModel, layout: ModelLayout) -> list[str]:
    """Divide the layers over tp; the names of the parameters with partial gradients."""
    from torch.distributed.tensor.parallel import parallelize_module

    check_tensor_parallel(model, layout.tp_size)
    names = [name for name, _ in model.named_modules()]
    used = {
        pattern: style
        for pattern, style in model.tp_plan.items()
        if any(re.fullmatch(_as_regex(pattern), name) for name in names)
    }
    styles = _styles()
    plan = {pattern: styles[style] for pattern, style in used.items() if style in styles}
    parallelize_module(model, layout.mesh["tp"], plan, src_data_rank=None)
    if model.config.get_text_config().tie_word_embeddings:
        model.get_output_embeddings().weight = model.get_input_embeddings().weight
    patterns = [_as_regex(pattern) for pattern, style in used.items() if style == PARTIAL]
    owners = [name.rpartition(".")[0] for name, _ in model.named_parameters()]
    return [
        name
        for owner, (name, _) in zip(owners, model.named_parameters(), strict=True)
        if any(re.fullmatch(pattern, owner) for pattern in patterns)
    ]


def check_tensor_parallel(model: PreTrainedModel, tp_size: int) -> None:
    """Raise for a model without a plan that torch's styles can follow, or whose heads tp does not divide."""
    kind = type(model).__name__
    plan = model.tp_plan if hasattr(model, "tp_plan") else {}
    if not plan or hasattr(model, "peft_config"):
        reason = "adapters have no plan" if hasattr(model, "peft_config") else "Transformers has no plan for it"
        raise ValueError(f"{kind} is not divided over tp_size={tp_size}: {reason}; tp_size=1 would do, with fsdp")
    modules = [name for name, _ in model.named_modules()] + [name for name, _ in model.named_parameters()]
    known = {*_styles(), PARTIAL}
    strange = {
        style
        for pattern, style in plan.items()
        if style not in known and any(re.fullmatch(_as_regex(pattern), name) for name in modules)
    }
    if strange:
        raise ValueError(
            f"{kind} is not divided over tp_size={tp_size}: torch has no {', '.join(sorted(strange))}, which are "
            "styles of its plan; tp_size=1 would do, with fsdp"
        )
    config = model.config.get_text_config()
    counts = [config.num_attention_heads, getattr(config, "num_key_value_heads", None) or config.num_attention_heads]
    if any(count % tp_size for count in counts):
        fit = [str(size) for size in range(1, min(counts) + 1) if not any(count % size for count in counts)]
        raise ValueError(
            f"tp_size={tp_size} does not divide the {counts[0]} attention heads and {counts[1]} key-value heads of "
            f"{kind}; {' or '.join(fit)} would do"
        )


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


def _as_regex(pattern: str) -> str:
    return re.escape(pattern).replace(r"\*", r"\d+")
