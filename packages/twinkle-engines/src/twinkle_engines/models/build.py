"""A Hugging Face causal language model, from a path, a name, a config or a function; with adapters or without."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from twinkle_engines.models.forward import NUMBERS, SCORE, head_name, put_number_head
from twinkle_engines.models.layout import drawn, of_folder
from twinkle_engines.models.parallel import plain_model

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    import torch
    from peft import PeftConfig, PeftModel
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from twinkle_engines.models.forward import HeadKind
    from twinkle_engines.models.layout import Filler, ModelLayout

    Source: TypeAlias = str | PathLike[str] | PretrainedConfig | Callable[[], PreTrainedModel | PeftModel]

_LIBRARIES = {"hf": ("transformers", "peft", "safetensors"), "vllm": ("vllm",)}
_ADAPTER = "default"
"""The name of the adapter, peft's own."""
_STARTS = (True, False, "gaussian", "eva", "orthogonal")
"""Starts of an adapter that leave the base as it is."""
_OF_BASE = ("modules_to_save", "use_dora", "trainable_token_indices")
"""Fields of adapters that are made of the base's values."""
_FACTS = (
    *("rope_parameters", "rope_theta", "rope_scaling", "partial_rotary_factor", "sliding_window", "layer_types"),
    *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "hidden_act", "num_experts_per_tok", "norm_topk_prob"),
)
"""Fields of a config that decide what a model computes with the same weights."""


def check_installed(engine: str, extra: str = "hf") -> None:
    """Raise where the libraries of an extra, "hf" or "vllm", are missing."""
    from importlib.util import find_spec

    missing = [name for name in _LIBRARIES[extra] if find_spec(name) is None]
    if missing:
        raise ImportError(
            f"{engine} needs {', '.join(missing)}, of the extra {extra} of twinkle-all: pip install {' '.join(missing)}"
        )


def torch_dtype(name: str) -> torch.dtype:
    """The dtype of a name such as "float32"; AttributeError for another name."""
    import torch

    return cast("torch.dtype", getattr(torch, name))


def build_model(
    source: Source,
    kind: torch.dtype,
    lora: PeftConfig | None,
    layout: ModelLayout | None = None,
    head: HeadKind = "lm",
) -> tuple[Any, Filler | None]:
    """Build a model on the CPU, and what brings its weights in once it is divided; None where they are there.

    Args:
        source: A folder or a hub's name; a config, for random weights; or a function that returns a model.
        kind: Dtype of the parameters; adapters of a shorter one are in float32.
        lora: Adapters to add; then they alone are trained, with a head of one number.
        layout: What it is divided over; None brings the weights in now.
        head: What stands in the place of the model's own.

    Raises:
        OSError: It is neither a folder nor a name that a hub knows.
        TypeError: For another kind of source.
        ValueError: Files have not all weights, or there are adapters that are not moved and written.
    """
    import torch
    from transformers import PretrainedConfig, PreTrainedModel

    if head not in ("lm", *NUMBERS):
        raise ValueError(f"head={head!r:.60} is none of 'lm', 'value', 'score'; use one")
    model: Any
    fill: Filler | None = None
    if isinstance(source, PretrainedConfig):
        model, fill = drawn(source, kind, layout, head == "lm")
    elif isinstance(source, str | PathLike):
        model, fill = _unread(source, kind, layout, head) or (_read(source, kind, head == "lm"), None)
    elif callable(source) and not isinstance(source, PreTrainedModel):
        model = source()
        wide = torch.promote_types(kind, torch.float32)
        for one in model.parameters():  # buffers, such as rotary frequencies, stay exact
            if one.is_floating_point():
                one.data = one.data.to(wide if hasattr(model, "peft_config") and one.requires_grad else kind)
        if head != "lm":
            put_number_head(plain_model(model))
    else:
        raise TypeError(
            f"model is a path, a name, a config or a function that builds the model on its workers, got "
            f"{type(source).__name__}; use lambda: copy.deepcopy(model) for one that is there"
        )
    of_base = head != "lm" or any(getattr(lora, name, None) for name in _OF_BASE)
    if fill is not None and (layout is None or (lora is not None and of_base)):
        fill(model)
        fill = None
    if lora is not None:
        model = _add_adapters(model, lora, [] if head == "lm" else [head_name(model).removesuffix(".weight")])
    _check_adapters(model)
    return model, fill


def _unread(
    source: str | PathLike[str], kind: torch.dtype, layout: ModelLayout | None, head: HeadKind
) -> tuple[Any, Filler] | None:
    """The model of a folder whose weights are read by slices later; None where it is read now.

    Names of a hub and adapters' folders are read now, as what one rank alone would have.
    """
    folder = Path(source)
    is_model = (folder / "config.json").exists() and not (folder / "adapter_config.json").exists()
    if not is_model or layout is None or (layout.world_size == 1 and head == "lm"):
        return None
    made = of_folder(source, kind, lambda: _read_model(source, kind, is_lm=head == "lm"), head == "lm")
    return made[:2] if made is not None and (made[2] or layout.tp_size == 1) else None


def _read(source: str | PathLike[str], kind: torch.dtype, is_lm: bool) -> Any:
    """The model of a folder or a hub's name, or the adapter there on its base.

    Raises:
        OSError: It is neither a folder nor a name that a hub knows.
        ValueError: The folder holds no model, or not all of its weights, or a model and an adapter.
    """
    folder = Path(source)
    is_adapter, is_model = ((folder / name).exists() for name in ("adapter_config.json", "config.json"))
    if folder.is_dir() and is_adapter and not is_model:
        return _read_adapter(folder, kind)
    if not str(source) or (folder.is_dir() and (is_adapter or not is_model)):
        raise ValueError(
            f"model={str(source)!r} holds {'a model and an adapter' if is_adapter else 'no config.json of a model'}: "
            "use a folder of save_pretrained(), of the one or the other; load(folder, model=...) reads a checkpoint"
        )
    model = _read_model(source, kind, is_lm=is_lm)
    return _read_adapter(source, kind) if getattr(model, "peft_config", None) else model


def _read_model(source: str | PathLike[str], kind: torch.dtype, revision: str = "main", is_lm: bool = True) -> Any:
    """The causal language model of a folder or a hub's name; Transformers begins anew with what the files have not."""
    from transformers import AutoModelForCausalLM

    read: Any = AutoModelForCausalLM.from_pretrained(source, dtype=kind, revision=revision, output_loading_info=True)
    model, told = read
    missing = {*told["missing_keys"]} - (set() if is_lm else {head_name(model)})
    if missing:
        raise ValueError(
            f"{str(source)!r} has no weights for {_some(missing)} of {type(model).__name__}, which would "
            "be random numbers: use a folder with all weights of a causal language model, or a function that builds "
            "the model, where parts of it are to start anew"
        )
    if not is_lm:
        if SCORE in told["unexpected_keys"]:
            raise ValueError(
                f"{str(source)!r} has a head of its own, {SCORE}, which is read of a folder of safetensors"
            )
        put_number_head(model)
    return model


def _read_adapter(folder: str | PathLike[str], kind: torch.dtype) -> Any:
    """The adapter of a folder on the base that its config names."""
    from peft import PeftConfig, PeftModel, load_peft_weights, set_peft_model_state_dict

    config = PeftConfig.from_pretrained(str(folder))
    base = _read_model(config.base_model_name_or_path, kind, config.revision or "main")
    adapted = PeftModel.from_pretrained(base, str(folder), is_trainable=True)
    told: Any = set_peft_model_state_dict(adapted, load_peft_weights(str(folder), device="cpu"), adapter_name=_ADAPTER)
    trained = {key for key, one in adapted.named_parameters() if one.requires_grad}
    if wrong := trained.intersection(told.missing_keys) or told.unexpected_keys:
        raise ValueError(
            f"the adapter in {folder} does not fit its config: {_some(wrong)} is there alone; use the base and the "
            "config that it was trained with"
        )
    return adapted


def _some(names: Collection[str]) -> str:
    first, *others = sorted(names)
    return f"{first} and {len(others)} more" if others else first


def _add_adapters(model: Any, lora: PeftConfig, heads: list[str]) -> Any:
    """The model with adapters, which alone are trained, with a head of one number."""
    from peft import get_peft_model

    if getattr(model, "peft_config", None):
        raise ValueError(
            "the model has an adapter already, and lora= would put a fresh one into its place: leave lora= out to go "
            "on training the one that it has, or give the base model"
        )
    _check_start(lora)
    own: Any = deepcopy(lora)  # peft writes into it, and others may be made of it
    if heads:
        own.modules_to_save = [*dict.fromkeys([*(own.modules_to_save or ()), *heads])]
    return get_peft_model(model, own)


def _check_adapters(model: Any) -> None:
    """Raise for several adapters, or one that changes the base, which is neither moved nor written."""
    from peft import PeftModel

    configs: Mapping[str, Any] = getattr(model, "peft_config", None) or {}
    if not configs:
        return
    if not isinstance(model, PeftModel) or list(configs) != [_ADAPTER]:
        raise ValueError(
            f"the model has the adapters {', '.join(configs)}: one is trained, of peft's own name {_ADAPTER!r} and "
            "outside of the model, as PeftModel.from_pretrained(base, folder, is_trainable=True) has it"
        )
    _check_start(configs[_ADAPTER])
    if any(getattr(part, "disable_adapters", False) is True for part in model.modules()):
        raise ValueError(
            f"the model's adapter {_ADAPTER!r} is switched off: call its enable_adapter_layers(), or annotate(..., "
            "adapters=False) for the model without it"
        )


def _check_start(config: Any) -> None:
    """Raise for adapters whose start changes the base, before peft does it."""
    start = getattr(config, "init_lora_weights", True)
    if start not in _STARTS:
        raise ValueError(
            f"init_lora_weights={start!r} takes its start out of the base, but adapters are moved and saved without "
            "the base; use True or 'gaussian', or save the model that peft has changed and train an adapter of that"
        )


def check_trained(model: Any) -> torch.dtype | None:
    """Check that there is something to train, in float32 or more; with adapters, hold all that is trained so.

    Returns:
        The dtype to compute in, that of frozen parameters of a shorter type; None where that is no question.

    Raises:
        ValueError: Nothing is trained, or parameters of a short type are.
    """
    trained = [one for one in model.parameters() if one.requires_grad]
    if not trained:
        raise ValueError(
            f"no parameter of {type(model).__name__} requires a gradient, so nothing can be trained; of adapters, "
            "PeftModel.from_pretrained(..., is_trainable=True) reads one to train"
        )
    short = {one.dtype for one in model.parameters() if one.dtype.itemsize < 4 and one.is_floating_point()}
    wanted = [one for one in trained if one.dtype in short]
    if wanted and not hasattr(model, "peft_config"):
        raise ValueError(
            f"{len(wanted)} parameters that are trained are of {wanted[0].dtype}, in which small steps are lost: use "
            'dtype="float32" with compute_dtype="bfloat16"'
        )
    wanted_dtype = wanted[0].dtype if wanted else None
    for one in wanted:
        one.data = one.data.float()
    return wanted_dtype


def enable_checkpointing(model: Any) -> None:
    """Compute the layers' activations anew in the backward pass, with dropout or without.

    Transformers' own way does it in training mode alone, in which a layer also draws.

    Raises:
        ValueError: The model has no layers that Transformers computes so.
    """
    import torch
    from torch.utils.checkpoint import checkpoint
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)]
    if not layers:
        raise ValueError(
            f"{type(model).__name__} has no layers whose activations Transformers computes anew; "
            "use gradient_checkpointing=False"
        )

    def anew(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    for layer in layers:
        layer.forward = partial(anew, layer.forward)


def named_weights(model: Any) -> dict[str, Tensor]:
    """The model's own parameters and buffers by name; of a model with adapters, those of the adapters."""
    state = model.state_dict(keep_vars=True)
    if not hasattr(model, "peft_config"):
        return dict(state)
    from peft import get_peft_model_state_dict

    return dict(get_peft_model_state_dict(model, state, save_embedding_layers=False))


def facts_of(model: Any) -> dict[str, str]:
    """Return what decides a model's numbers next to its weights: fields of its config, and the scaling of adapters.

    A sync and `load` compare them: two models of the same names and shapes may still be others.
    """
    fields = plain_model(model).config.get_text_config().to_dict()
    found = {f"{name} of its config": _text(fields[name]) for name in _FACTS if fields.get(name) is not None}
    config = (getattr(model, "peft_config", None) or {}).get(_ADAPTER)
    for name in ("r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern"):
        if hasattr(config, name):
            found[f"{name} of its adapters"] = _text(getattr(config, name))
    return found


def _text(value: Any) -> str:
    """The value in one form: files sort keys, have lists for tuples, and 10000 may stand for 10000.0."""
    if isinstance(value, dict):
        return repr(sorted((str(key), _text(one)) for key, one in value.items()))
    if isinstance(value, list | tuple):
        return repr([_text(one) for one in value])
    return repr(float(value) if isinstance(value, int) and not isinstance(value, bool) else value)


def read_tokenizer(
    source: Source, tokenizer: PreTrainedTokenizerBase | str | PathLike[str] | None
) -> PreTrainedTokenizerBase | None:
    """A copy of the tokenizer; one read from a folder or a hub's name; or that of the model, if there is one.

    A copy, since a call changes what a tokenizer holds (padding, truncation), and ranks may be threads of one process.
    """
    from transformers import AutoTokenizer

    if tokenizer is not None and not isinstance(tokenizer, str | PathLike):
        return deepcopy(tokenizer)
    place = tokenizer if tokenizer is not None else source
    if not isinstance(place, str | PathLike):
        return None
    files = [Path(place) / name for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt")]
    if tokenizer is None and Path(place).is_dir() and not any(file.exists() for file in files):
        return None
    return cast("PreTrainedTokenizerBase", AutoTokenizer.from_pretrained(place))
