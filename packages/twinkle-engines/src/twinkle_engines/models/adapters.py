"""Adapters of peft: which are trained, how they come to a model, and what they stand on."""

from __future__ import annotations

import hashlib
import re
import warnings
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from twinkle_engines.parallel.digests import digest_tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from os import PathLike

    from peft import PeftConfig
    from torch import nn

NAME = "default"
"""The name of the adapter, peft's own."""

_OF_LORA = {
    "layer_replication": "layers that share their weights with others",
    "ensure_weight_tying": "adapters that share their weights with others",
}
_KINDS = ("LORA", "LOHA", "LOKR", "IA3", "OFT", "BOFT", "HRA", "LN_TUNING", "FOURIERFT", "MISS", "ROAD")
"""Kinds of peft that are parameters of their own outside of the model's layers."""


def add_adapters(model: Any, lora: PeftConfig) -> Any:
    """The model with adapters, which alone are trained.

    Raises:
        TypeError: `lora` is no config of peft's.
        ValueError: The model has adapters, or those given are none that are divided, moved and written.
    """
    from peft import PeftConfig, get_peft_model

    if not isinstance(lora, PeftConfig):
        raise TypeError(
            f"lora is a config of peft's, got {lora!r:.60} of type {type(lora).__name__}; use "
            'LoraConfig(r=16, target_modules="all-linear")'
        )
    if getattr(model, "peft_config", None):
        raise ValueError(
            "the model has an adapter already, and lora= would put a fresh one into its place: leave lora= out to go "
            "on training the one that it has, or give the base model"
        )
    _check_config(lora)
    before = dict(_digests(model))
    adapted = get_peft_model(model, deepcopy(lora))  # which writes into it, and others may be made of it
    _check_base(before, adapted, lora)
    _report_unmatched(adapted)
    return adapted


def adapted_from(folder: str | PathLike[str], dtype: torch.dtype) -> Any:
    """The model of a folder or a hub's name that has an adapter, on the base that its config names.

    Raises:
        ValueError: The config names no base, the adapter is none that is divided, moved and written, or the files do
            not have all weights of the base or of the adapter.
    """
    from peft import PeftConfig, PeftModel

    from twinkle_engines.checkpoints.reading import check_adapter, read_model

    config = PeftConfig.from_pretrained(str(folder))
    base = config.base_model_name_or_path
    if not base:
        raise ValueError(
            f"the adapter in {folder} does not name its base (base_model_name_or_path): give a function that returns "
            "PeftModel.from_pretrained(base, folder, is_trainable=True)"
        )
    _check_config(config)
    model = read_model(base, dtype, config.revision or "main")
    before = dict(_digests(model))
    adapted = PeftModel.from_pretrained(model, str(folder), is_trainable=True)
    check_adapter(adapted, folder, NAME)
    _check_base(before, adapted, config)
    return adapted


def is_adapter(source: str | PathLike[str]) -> bool:
    """Whether a folder holds an adapter, and no model."""
    path = Path(source)
    return (path / "adapter_config.json").exists() and not (path / "config.json").exists()


def widen(model: Any) -> torch.dtype | None:
    """Hold all that is trained with adapters in one dtype, float32, as peft holds adapters of short ones.

    Returns:
        The dtype to compute in, that of the frozen parameters; None where nothing had to be done.
    """
    trained = [one for one in model.parameters() if one.requires_grad]
    if not getattr(model, "peft_config", None) or len({one.dtype for one in trained}) < 2:
        return None
    short = {one.dtype for one in model.parameters() if one.dtype.itemsize < torch.float32.itemsize}
    for one in trained:
        if one.dtype in short:
            one.data = one.data.float()
    return next(iter(short), None)


def check_outside(model: Any) -> None:
    """Raise for a model whose adapter is inside, which peft's own functions do not know.

    Raises:
        ValueError: It is.
    """
    from peft import PeftModel

    if getattr(model, "peft_config", None) and not isinstance(model, PeftModel):
        raise ValueError(
            "the model has its adapter inside, as Transformers loads it: give the adapter's folder as the model, or "
            "a function that returns PeftModel.from_pretrained(base, folder, is_trainable=True)"
        )


def check_adapters(model: Any, trained: bool = True) -> None:
    """Raise for a model, with adapters or without, that cannot be divided, moved or written.

    Args:
        model: The model.
        trained: Whether it is one to train.

    Raises:
        ValueError: Nothing is trained, or adapters are of another kind, of another name, or share their memory.
    """
    check_outside(model)
    configs = getattr(model, "peft_config", None)
    if configs:
        if list(configs) != [NAME]:
            raise ValueError(
                f"the model has the adapters {', '.join(map(repr, configs))}: one is trained, moved and written, of "
                f"peft's own name {NAME!r}; leave adapter_name out"
            )
        _check_config(configs[NAME])
    kept = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    if trained and not kept:
        hint = "; PeftModel.from_pretrained(..., is_trainable=True) reads an adapter to train" if configs else ""
        raise ValueError(f"no parameter of {type(model).__name__} requires a gradient, so nothing can be trained{hint}")
    memory: dict[int, str] = {}
    for name, one in kept if configs else ():
        other = memory.setdefault(one.untyped_storage().data_ptr(), name)
        if other != name or not one.is_contiguous():
            raise ValueError(
                f"the adapters {other} and {name} share their memory: leave out ensure_weight_tying, or the tied layers"
            )


def facts(model: Any) -> dict[str, str]:
    """The base of adapters, by what is compared: the frozen weights of the base, and the scaling; else empty.

    The weights are rounded to short types that they can be held in elsewhere, and are compared in one that both know.
    """
    if not getattr(model, "peft_config", None):
        return {}
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [(name, part) for name, part in model.named_modules() if isinstance(part, BaseTunerLayer)]
    scales = [(name, getattr(part, "scaling", None) or {}) for name, part in layers]
    scaling = {name: scale[NAME] for name, scale in scales if NAME in scale}
    values = ", ".join(sorted({f"{float(value):g}" for value in scaling.values()})) or "1"
    found = {"the scaling of its adapters": f"{values} ({_short(sorted(scaling.items()))})"}
    kinds = {one.dtype for one in model.parameters() if not one.requires_grad and one.is_floating_point()}
    for kind in (torch.bfloat16, torch.float16):
        if kinds <= {kind, torch.float32, torch.float64}:
            digests = [(name, value) for name, value in _digests(model, kind)]
            found[f"the base of its adapters in {str(kind).removeprefix('torch.')}"] = _short(digests)
    return found


def check_facts(mine: Mapping[str, str], other: Mapping[str, str], what: str) -> None:
    """Raise where adapters come from another base or scaling.

    Args:
        mine: Of this model.
        other: Of what is read.
        what: What is read, for the error.

    Raises:
        ValueError: They differ in what both report.
    """
    for name in mine.keys() & other.keys():
        if mine[name] != other[name]:
            raise ValueError(
                f"{name} is {other[name]} in {what}, but {mine[name]} in this model: adapters are right on their own "
                "base and scaling alone; build the model from the same base, with the same lora="
            )


def _check_config(lora: Any) -> None:
    kind = str(getattr(lora.peft_type, "value", lora.peft_type))
    if getattr(lora, "is_prompt_learning", False) or kind not in _KINDS:
        raise ValueError(
            f"adapters of the kind {kind} are not trained here: they are no parameters of the model's layers; use "
            "LoraConfig, or another of " + ", ".join(_KINDS)
        )
    for field, why in _OF_LORA.items():
        if getattr(lora, field, None):
            raise ValueError(f"lora has {field}={getattr(lora, field)!r}, {why}, which are not divided: leave it out")


def _report_unmatched(adapted: Any) -> None:
    """Warn of what a config names and the model does not have, which peft leaves out without a word."""
    config = adapted.peft_config[NAME]  # as peft has fitted it to the model
    every = [name for name, _ in adapted.get_base_model().named_modules()]
    layers: list[str] = adapted.targeted_module_names
    for field, names in (("target_modules", layers), ("modules_to_save", every), ("layers_to_transform", layers)):
        given = getattr(config, field, None)
        asked = [given] if isinstance(given, int) else [] if given is None or isinstance(given, str) else list(given)
        pattern = r"(.*\.)?{}(\..*)?" if field == "layers_to_transform" else r"(.*\.)?{}"
        found = [one for one in asked if any(re.fullmatch(pattern.format(re.escape(str(one))), name) for name in names)]
        if left := [repr(one) for one in asked if one not in found]:
            warnings.warn(
                f"lora has {field}={', '.join(left)}, but the model has no such layer, so it changes nothing: use "
                "names of the model's own layers",
                stacklevel=2,
            )


def _check_base(before: Mapping[str, Any], adapted: Any, lora: Any) -> None:
    """Raise where an adapter's start has changed the base: the adapter alone would not be the model."""
    after = dict(_digests(adapted))
    changed = [name for name, value in before.items() if name in after and after[name] != value]
    if changed:
        start = getattr(lora, "init_lora_weights", None)
        raise ValueError(
            f"init_lora_weights={start!r} takes its start out of the base ({changed[0]} and {len(changed) - 1} more "
            "are changed), but adapters are moved and saved without the base; use True or 'gaussian', or save the "
            "model that peft has changed and train an adapter of that"
        )


def _digests(model: Any, kind: torch.dtype | None = None) -> Iterator[tuple[str, Any]]:
    """The shape and a digest of each frozen parameter of the base by its own name."""
    for name, one in _own_parameters(model):
        yield name, (tuple(one.shape), digest_tensor(one.detach() if kind is None else one.detach().to(kind)))


def _own_parameters(model: Any) -> Iterator[tuple[str, nn.Parameter]]:
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    trained = any(one.requires_grad for one in model.parameters()) and base is not model
    for name, one in base.named_parameters():
        if trained and one.requires_grad:
            continue
        yield name.replace(".base_layer", "").replace(".original_module", ""), one


def _short(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:12]
