"""A Hugging Face causal language model, from a path, a name, a config or a function that builds it."""

from __future__ import annotations

import re
from copy import deepcopy
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from weakref import WeakSet

from twinkle_engines.parallel.tensor_parallel import plain_model

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from peft import PeftConfig, PeftModel
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    Source: TypeAlias = str | PathLike[str] | PretrainedConfig | Callable[[], PreTrainedModel | PeftModel]


_TAKEN: WeakSet[Any] = WeakSet()
"""Models that functions have returned in this process."""
_LIBRARIES = {"hf": ("transformers", "peft", "safetensors"), "vllm": ("vllm",)}


def check_installed(engine: str, extra: str = "hf") -> None:
    """Raise where the libraries of an extra, "hf" or "vllm", are missing.

    Raises:
        ImportError: A library is missing; the error names it and the extra.
    """
    from importlib.util import find_spec

    missing = [name for name in _LIBRARIES[extra] if find_spec(name) is None]
    if missing:
        raise ImportError(
            f"{engine} needs {', '.join(missing)}, of the extra {extra} of twinkle-all: pip install {' '.join(missing)}"
        )


def torch_dtype(option: str, name: object) -> torch.dtype:
    """The dtype of a name such as "float32".

    Args:
        option: The argument, for errors.
        name: The name.

    Raises:
        ValueError: For another name, or something else.
    """
    import torch

    names = ("float32", "bfloat16", "float16", "float64")
    if not isinstance(name, str) or name not in names:
        raise ValueError(f"{option}={name!r:.60} is none of {', '.join(names)}; use one of these texts")
    return cast("torch.dtype", getattr(torch, name))


def build_model(source: Source, dtype: str, lora: PeftConfig | None) -> PreTrainedModel:
    """Build a whole model on the CPU.

    Args:
        source: A folder or a hub's name; a config, for random weights; or a function that returns a model.
        dtype: Dtype of the parameters.
        lora: Adapters to add; then they alone are trained.

    Raises:
        TypeError: For another kind of source, or a model without a head over its vocabulary.
        ValueError: For adapters that are not to be trained, or that are there already; or a function that returns the
            same model again.
    """
    from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

    from twinkle_engines.batches.given import called_with
    from twinkle_engines.models.adapters import add_adapters, check_outside
    from twinkle_engines.models.casting import cast_like_folder

    model: Any
    kind = torch_dtype("dtype", dtype)
    if isinstance(source, PretrainedConfig):
        model = AutoModelForCausalLM.from_config(deepcopy(source), dtype=kind)  # which writes the dtype into it
    elif isinstance(source, str | PathLike):
        model = _read(source, kind)
    elif callable(source) and not isinstance(source, PreTrainedModel):
        called_with("the function of model=", source)
        model = source()
        check_head(model)
        check_outside(model)
        _take(model)
        model = cast_like_folder(model, kind)
    else:
        raise TypeError(
            f"model is a path, a name, a config or a function that builds the model on its workers, got "
            f"{type(source).__name__}; use lambda: copy.deepcopy(model) for one that is there"
        )
    if lora is not None:
        model = add_adapters(model, lora)
    return cast("PreTrainedModel", model)


def _take(model: Any) -> None:
    """Note that a component has a model, which it casts, divides and trains in place.

    Raises:
        ValueError: Another one has it.
    """
    own = plain_model(model)
    if own in _TAKEN:
        raise ValueError(
            f"the function of model= returned a {type(own).__name__} that another component has, or had, in this "
            "process, so that steps of one would change the other: use a function that builds a new one at each call, "
            "as lambda: copy.deepcopy(model) does"
        )
    _TAKEN.add(own)


def check_head(model: object) -> None:
    """Raise for what a function has built, where it is no model that gives logits over its vocabulary.

    Raises:
        TypeError: It is no model of Transformers' or peft's, or has no head of a language model, as a classifier.
    """
    from peft import PeftModel
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel | PeftModel):
        raise TypeError(
            f"the function of model= returned a {type(model).__name__}: use one that returns a causal language model, "
            "such as AutoModelForCausalLM builds, or a PeftModel of one"
        )
    if isinstance(model, PreTrainedModel) and not model.can_generate() and model.get_output_embeddings() is None:
        raise TypeError(
            f"the function builds a {type(model).__name__}, which has no head over its vocabulary: use a causal "
            "language model, such as AutoModelForCausalLM builds"
        )


def _read(source: str | PathLike[str], kind: torch.dtype) -> Any:
    """The model of a folder or a hub's name, or the adapter there on its base.

    Raises:
        OSError: It is neither a folder nor a name that a hub knows.
        ValueError: The folder holds no model, or not all of its weights; or the text is empty.
    """
    from twinkle_engines.checkpoints.reading import read_model
    from twinkle_engines.models.adapters import adapted_from, is_adapter

    if is_adapter(source):
        return adapted_from(source, kind)
    if not str(source) or (Path(source).is_dir() and not (Path(source) / "config.json").exists()):
        raise ValueError(
            f"model={str(source)!r} holds no model, which has a config.json: use a folder of save_pretrained(); "
            "load(folder, model=...) reads a checkpoint into a model"
        )
    try:
        model = read_model(source, kind)
    except OSError as error:
        if Path(source).exists():
            raise
        raise OSError(
            f"model={str(source)!r} is no folder here, and no model of a hub that can be read: {error}"
        ) from error
    if not getattr(model, "peft_config", None):
        return model
    if Path(source).is_dir():
        raise ValueError(
            f"{source} holds a model and an adapter, and nothing says whether the one is in the other already: take "
            "adapter_config.json and adapter_model.safetensors out, or config.json and the model's weights"
        )
    return adapted_from(source, kind)


def enable_checkpointing(model: Any) -> None:
    """Compute the layers' activations anew in the backward pass, with dropout or without.

    Transformers' own way does it in training mode alone, in which a layer also draws.

    Raises:
        ValueError: The model has no layers that Transformers computes so.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)]
    if not layers:
        raise ValueError(
            f"{type(model).__name__} has no layers whose activations Transformers computes anew; "
            "use gradient_checkpointing=False"
        )
    for layer in layers:
        layer.forward = _anew(layer.forward)


def _anew(forward: Callable[..., Any]) -> Callable[..., Any]:
    import torch
    from torch.utils.checkpoint import checkpoint

    def computed_anew(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return computed_anew


def named_weights(model: Any) -> dict[str, Tensor]:
    """The model's own parameters and buffers by name; of a model with adapters, those of the adapters."""
    state = model.state_dict(keep_vars=True)
    if not hasattr(model, "peft_config"):
        return dict(state)
    from peft import get_peft_model_state_dict

    return dict(get_peft_model_state_dict(model, state, save_embedding_layers=False))


def config_facts(model: Any) -> dict[str, str]:
    """The fields of a model's config that decide what it computes with its weights, such as the rotary frequencies.

    A sync compares them: two models of the same names and shapes may still be others.
    """
    fields = plain_model(model).config.get_text_config().to_dict()
    known = {name: value for name, value in fields.items() if not _SAYS_NOTHING.search(name)}
    return {f"{name} of its config": repr(_comparable(value)) for name, value in sorted(known.items())}


def _comparable(value: Any) -> Any:
    """The value in one form: files sort keys, have lists for tuples, and 10000 may stand for 10000.0."""
    if isinstance(value, dict):
        return {str(key): _comparable(one) for key, one in sorted(value.items(), key=lambda item: str(item[0]))}
    if isinstance(value, list | tuple):
        return [_comparable(one) for one in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


_SAYS_NOTHING = re.compile(
    r"^_|_token_ids?$|drop|init|^dtype$|^torch_dtype$|^use_cache$|^architectures$|^transformers_version$|^model_type$"
    r"|name_or_path$|^output_|logits_to_keep$|^return_dict|vocab_size$|^tie_|positions?$|^max_|aux_loss|jitter|_implementation$|label"
    r"|^problem_type$|^pretraining_tp$|^chunk_size|^task|^tokenizer_class$|^quantization|^is_|^add_cross|^bos_|^use_bfloat16$"
)
"""Fields that change no number of a pass without dropout, or that the shapes of the weights show, or limits."""


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


def only_ends(model: Any, tokenizer: PreTrainedTokenizerBase | None) -> list[int]:
    """The tokens that end a sequence; the model's other preferences for generation are dropped."""
    from transformers import GenerationConfig

    from twinkle_engines.batches.ends import ends_of

    found = ends_of(tokenizer, model.generation_config.eos_token_id)
    model.generation_config = GenerationConfig(eos_token_id=found or None, pad_token_id=0)
    return found
