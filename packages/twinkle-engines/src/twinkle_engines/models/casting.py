"""The dtype of a model that a function has built, as a folder's model has it."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch

from twinkle_engines.parallel.tensor_parallel import plain_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn


@torch.no_grad()
def cast_like_folder(model: Any, kind: torch.dtype) -> Any:
    """Cast a model's parameters, and what else its files hold, in place; what it computes by itself stays exact.

    Rotary frequencies, which no file holds, are in float32; so are adapters of parameters of a short type.

    Args:
        model: The model, with adapters or without.
        kind: The dtype.

    Raises:
        ValueError: What the model computes by itself was rounded where it was built.
    """
    own = plain_model(model)
    wide = _kept_wide(own, kind)
    held = set(model.state_dict())
    for name, one in model.named_parameters():
        adapter = ".default" in name and "modules_to_save" not in name
        if one.is_floating_point():
            one.data = one.data.to(torch.promote_types(kind, torch.float32) if adapter or wide(name) else kind)
    for module_name, module in model.named_modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            whole = f"{module_name}.{name}" if module_name else name
            if buffer.is_floating_point() and whole in held:
                module.register_buffer(name, buffer.to(torch.float32 if wide(whole) else kind))
            elif buffer.is_floating_point() and buffer.dtype.itemsize < torch.float32.itemsize:
                module.register_buffer(name, _anew(module, name, whole), persistent=False)
    _own_config(own)
    for config in _configs(own.config):
        config.dtype = kind
    return model


def _own_config(model: Any) -> None:
    """Give a model and its layers a config of their own: the function may build further models of the one it has."""
    copies: dict[int, Any] = {}
    model.config = deepcopy(model.config, copies)
    for module in model.modules():
        held = vars(module).get("config")
        if id(held) in copies:
            module.config = copies[id(held)]


def _kept_wide(model: Any, kind: torch.dtype) -> Any:
    """The names that Transformers keeps in float32 next to a short type; it says so in no public way."""
    strict = getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    names = [*strict, *((getattr(model, "_keep_in_fp32_modules", None) or ()) if kind is torch.float16 else ())]
    if kind.itemsize >= torch.float32.itemsize or not names:
        return lambda name: False
    pattern = re.compile("|".join(rf"(^|\.){re.escape(name)}($|\.)" for name in names))
    return lambda name: pattern.search(name) is not None


def _anew(module: nn.Module, name: str, whole: str) -> Tensor:
    """A buffer as its module makes it, which a cast has rounded."""
    try:
        fresh: Any = type(module)(module.config)  # as rotary embeddings are made
        buffer: Tensor = dict(fresh.named_buffers(recurse=False))[name]
    except Exception as error:
        raise ValueError(
            f"the function has rounded {whole} to a short type, which no file holds: build the model with dtype= in "
            "from_pretrained or from_config, in place of .to()"
        ) from error
    return buffer.to(module.get_buffer(name).device)


def _configs(config: Any) -> Iterator[Any]:
    yield config
    for name in getattr(config, "sub_configs", None) or {}:
        part = getattr(config, name, None)
        if part is not None and not isinstance(part, dict):
            yield from _configs(part)
