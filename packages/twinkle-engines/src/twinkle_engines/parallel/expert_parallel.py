"""Expert parallelism by Transformers' own plan: each rank holds whole experts, and tokens travel to them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from twinkle_engines.parallel.tensor_parallel import matching, plain_model

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

DISPATCH = "ep_dispatch_experts"
"""The plan's style of a module of experts, which gets its tokens from other ranks."""


def expert_plan(model: Any) -> dict[str, str]:
    """The plan of a model's experts, by patterns; empty for a model without any."""
    own = plain_model(model)
    plan: dict[str, str] = dict(getattr(own, "ep_plan", None) or {})
    names = [name for name, _ in own.named_modules()] + [name for name, _ in own.named_parameters()]
    return {pattern: style for pattern, style in plan.items() if any(matching(pattern, name) for name in names)}


def split_experts(model: Any, ep: DeviceMesh, tp: DeviceMesh) -> list[nn.Module]:
    """Divide the experts over ep, in place; the modules that hold them.

    Args:
        model: The model, alike on all ranks; adapters are outside of the experts.
        ep: Torch's mesh of the dim ep.
        tp: Torch's mesh of the dim tp, whose ranks have the same tokens.

    Raises:
        ValueError: The experts cannot be divided over so many ranks.
    """
    check_expert_parallel(model, ep.size())
    _check_no_adapters(model)
    from transformers.distributed.expert_parallel import apply_expert_parallelism

    own, plan = plain_model(model), expert_plan(model)
    used: dict[str, str] = {}
    for module_name, module in own.named_modules():  # the parameters of a module come before the module
        own_names = [f"{module_name}.{name}" for name, _ in module.named_parameters(recurse=False)]
        for name in (*own_names, module_name):
            for pattern, style in plan.items():
                if matching(pattern, name):
                    used[name] = style
    apply_expert_parallelism(own, ep, tp, used)
    return [own.get_submodule(name) for name, style in used.items() if style == DISPATCH]


def _check_no_adapters(model: Any) -> None:
    """Raise for adapters of experts, which would stay whole next to parts of them.

    Raises:
        ValueError: There are some.
    """
    if not hasattr(model, "peft_config"):
        return
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    own, plan = plain_model(model), expert_plan(model)
    held = [pattern for pattern, style in plan.items() if style == DISPATCH]
    for name, module in own.named_modules():
        inside = any(matching(pattern, name[:end]) for pattern in held for end in _ends(name))
        if inside and isinstance(module, BaseTunerLayer | AuxiliaryTrainingWrapper):
            raise ValueError(
                f"{name} has an adapter, and experts are divided over ep_size (without one, tp_size): leave experts "
                "out of target_modules, target_parameters and modules_to_save, or use tp_size=1, ep_size=1, with fsdp"
            )


def _ends(name: str) -> list[int]:
    """Where the names of a module and of those that hold it end."""
    return [i for i, letter in enumerate(name) if letter == "."] + [len(name)]


def check_expert_parallel(model: Any, ep_size: int) -> None:
    """Raise for a model whose experts are not divided over so many ranks, or a Transformers that cannot.

    Raises:
        ImportError: Transformers is too old.
        ValueError: There are no experts, or their number is not a multiple.
    """
    own, plan = plain_model(model), expert_plan(model)
    kind = type(own).__name__
    if DISPATCH not in plan.values():
        raise ValueError(f"{kind} has no experts that Transformers divides over ep_size={ep_size}; use ep_size=1")
    if find_spec("transformers.distributed.expert_parallel") is None:
        raise ImportError(f"experts of {kind} are divided over ranks by transformers 5.21 and newer: update it")
    sizes = {
        len(parameter)
        for name, module in own.named_modules()
        if any(matching(pattern, name) and style == DISPATCH for pattern, style in plan.items())
        for parameter in module.parameters()
    }
    if any(size % ep_size for size in sizes):
        fit = [str(n) for n in range(1, min(sizes) + 1) if not any(size % n for size in sizes)]
        raise ValueError(
            f"ep_size={ep_size} (without one, tp_size) does not divide the {' or '.join(map(str, sorted(sizes)))} "
            f"experts of {kind}; use {' or '.join(fit)}"
        )
