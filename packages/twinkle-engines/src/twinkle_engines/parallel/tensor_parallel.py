"""Tensor parallelism by Transformers' own plan: the torch style of each module of a model, and of its adapters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ParallelStyle

PARTIAL = "replicated_with_grad_allreduce"
"""The plan's style of parameters that each rank holds whole, and whose gradients are sums over the ranks."""

_ADAPTED: Mapping[str, Literal["lora_A", "lora_B"]] = {
    "colwise": "lora_B",
    "colwise_gather_output": "lora_B",
    "colwise_rep": "lora_B",
    "rowwise": "lora_A",
    "rowwise_split_input": "lora_A",
    "rowwise_rep": "lora_A",
}
"""The part of an adapter that is divided as its layer is: the one with the layer's divided dim. The other is whole."""


def plain_model(model: Any) -> Any:
    """The model itself, where peft has put it into one with adapters."""
    return model.get_base_model() if hasattr(model, "peft_config") else model


def split_layers(model: Any, mesh: DeviceMesh, apart: Mapping[str, str]) -> list[nn.Parameter]:
    """Divide the layers over tp, in place.

    Args:
        model: The model, alike on all ranks; with adapters or without.
        mesh: Torch's mesh of the dim tp.
        apart: Patterns of modules that are divided otherwise.

    Returns:
        The parameters that each rank holds whole, with gradients that have to be summed over tp.

    Raises:
        ValueError: The model cannot be divided over so many ranks.
    """
    from torch.distributed.tensor.parallel import parallelize_module

    check_tensor_parallel(model, mesh.size(), apart)
    if hasattr(model, "peft_config"):
        _check_single_tokens(model)
    own = plain_model(model)
    tables = [plain_table(own.get_input_embeddings()), plain_table(own.get_output_embeddings())]
    tied = all(tables) and tables[0].weight is tables[1].weight
    used = _used_plan(own, apart)
    styles = _styles()
    plan: dict[str, ParallelStyle] = {}
    for name, style in used.items():
        if style in styles:
            plan |= _with_adapters(name, own.get_submodule(name), style, styles)
    parallelize_module(own, mesh, plan, src_data_rank=None)
    if tied:
        tables[1].weight = tables[0].weight
    partial = [own.get_submodule(name) for name, style in used.items() if style == PARTIAL]
    return [parameter for module in partial for parameter in module.parameters() if parameter.requires_grad]


def check_tensor_parallel(model: Any, tp_size: int, apart: Mapping[str, str] | None = None) -> None:
    """Raise for a model without a plan that torch's styles can follow, or whose heads tp does not divide."""
    own = plain_model(model)
    kind = type(own).__name__
    if not (own.tp_plan if hasattr(own, "tp_plan") else {}):
        raise ValueError(
            f"{kind} is not divided over tp_size={tp_size}: Transformers has no plan for it; use tp_size=1, with fsdp"
        )
    strange = set(_used_plan(own, apart or {}).values()) - {*_styles(), PARTIAL}
    if strange:
        raise ValueError(
            f"{kind} is not divided over tp_size={tp_size}: torch has no {', '.join(sorted(strange))}, which are "
            "styles of its plan; use tp_size=1, with fsdp"
        )
    config = own.config.get_text_config()
    counts = [config.num_attention_heads, getattr(config, "num_key_value_heads", None) or config.num_attention_heads]
    if any(count % tp_size for count in counts):
        fit = [str(size) for size in range(1, min(counts) + 1) if not any(count % size for count in counts)]
        raise ValueError(
            f"tp_size={tp_size} does not divide the {counts[0]} attention heads and {counts[1]} key-value heads of "
            f"{kind}; use {' or '.join(fit)}"
        )


def matching(pattern: str, name: str) -> bool:
    """Whether a pattern of a plan, such as "layers.*.mlp", is one of a name."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", r"\d+"), name) is not None


def _used_plan(own: Any, apart: Mapping[str, str]) -> dict[str, str]:
    """The style of each module that the plan names, and of parameters that it names by themselves."""
    names = [name for name, _ in own.named_modules()] + [name for name, _ in own.named_parameters()]
    plan = {name: style for name in names for pattern, style in own.tp_plan.items() if matching(pattern, name)}
    return {name: style for name, style in plan.items() if not any(matching(pattern, name) for pattern in apart)}


def _check_single_tokens(model: Any) -> None:
    """Raise for adapters that train single tokens: also where a plan does not divide their table."""
    from peft.utils.other import AuxiliaryTrainingWrapper, ModulesToSaveWrapper

    for name, module in plain_model(model).named_modules():
        if isinstance(module, AuxiliaryTrainingWrapper) and not isinstance(module, ModulesToSaveWrapper):
            raise ValueError(
                f"single tokens of {name} are trained (trainable_token_indices), which are not divided over tp: use "
                "modules_to_save, or tp_size=1, with fsdp"
            )


def _with_adapters(
    name: str, module: nn.Module, style: str, styles: Mapping[str, ParallelStyle]
) -> dict[str, ParallelStyle]:
    """The styles of a module, or of the layer and the adapter that peft has put into its place.

    Raises:
        ValueError: The adapter is none that can be divided.
    """
    from peft.tuners.lora import Linear
    from peft.utils.other import ModulesToSaveWrapper

    if isinstance(module, ModulesToSaveWrapper):
        copies = [f"{name}.modules_to_save.{adapter}" for adapter in module.modules_to_save]
        return dict.fromkeys([f"{name}.original_module", *copies], styles[style])
    if not hasattr(module, "base_layer"):
        return {name: styles[style]}

    if not isinstance(module, Linear) or style not in _ADAPTED or bool(module.lora_variant):
        raise ValueError(
            f"the adapter of {name} is not divided over tp: LoRA of linear layers is, without DoRA; leave it out of "
            "target_modules, or use tp_size=1, with fsdp"
        )
    part = _ADAPTED[style]
    divided = {f"{name}.{part}.{adapter}": styles[style] for adapter in getattr(module, part)}
    return {f"{name}.base_layer": styles[style], **divided}


def plain_table(module: Any) -> Any:
    """The layer itself, where peft has put an adapter or a copy into its place."""
    while hasattr(module, "base_layer") or hasattr(module, "original_module"):
        module = module.base_layer if hasattr(module, "base_layer") else module.original_module
    return module if hasattr(module, "weight") else None


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
