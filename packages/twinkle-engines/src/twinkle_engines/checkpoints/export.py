"""Exports: a divided model as the safetensors that `from_pretrained` loads, written by Transformers and peft."""

from __future__ import annotations

import shutil
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from twinkle_engines.batches.chats import ends_of
from twinkle_engines.checkpoints.checkpoint import agreed
from twinkle_engines.models.build import named_weights, read_tokenizer
from twinkle_engines.models.head import as_classifier, is_number_head

if TYPE_CHECKING:
    from os import PathLike

    from torch import Tensor

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*", "consolidated*", "adapter_model*")
_TOKENIZER = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "spiece.model"),
    *("chat_template.jinja", "tekken.json"),
)


@torch.no_grad()
def export(model: Any, folder: str | PathLike[str]) -> None:
    """Write a model's configuration and weights; all ranks call this, the first one writes.

    The tokenizer's files with the model's source are copied where the folder has none.

    Raises:
        OSError: The first rank cannot write.
        ValueError: The folder holds weights.
    """
    path, is_first = Path(folder), dist.get_rank() == 0
    with agreed("writing the model"):
        held = [file.name for pattern in _WEIGHTS for file in path.glob(pattern)] if is_first else []
        if held:
            raise ValueError(
                f"{path} holds {held[0]}, which a loader might read in place of what is written: use a new folder, or "
                "remove it"
            )
    state: dict[str, Tensor] = {}
    places: set[int] = set()
    for name, weight in named_weights(model).items():
        whole = weight.full_tensor() if isinstance(weight, DTensor) else weight  # all ranks take part
        if is_first:
            own = whole.detach().cpu().contiguous()
            state[name] = own.clone() if own.data_ptr() in places else own  # of two that are tied, each is written
            places.add(own.data_ptr())
    with agreed("writing the model"):
        if is_first:
            (_write_adapters if hasattr(model, "peft_config") else _write_model)(model, state, path)


def _write_adapters(model: Any, state: dict[str, Tensor], path: Path) -> None:
    from safetensors.torch import save_file

    path.mkdir(parents=True, exist_ok=True)
    config = deepcopy(model.peft_config["default"])
    config.inference_mode = True
    config.save_pretrained(path)
    save_file({name: one.clone() for name, one in state.items()}, path / "adapter_model.safetensors", {"format": "pt"})


def _write_model(model: Any, state: dict[str, Tensor], path: Path) -> None:
    """Write by a twin without memory, whose class is the one that Transformers knows."""
    kind = next(one for one in type(model).__mro__ if not one.__name__.startswith("FSDP"))
    config = deepcopy(model.config)
    # a head that was trained by itself is a weight of its own, whatever the config says
    ties = {name: first for name, first in model.all_tied_weights_keys.items() if {name, first} <= state.keys()}
    is_tied = all(torch.equal(state[name], state[first]) for name, first in ties.items())
    if is_tied:
        state = {name: one for name, one in state.items() if name not in ties}
    else:
        for one in (config, config.get_text_config()):
            one.tie_word_embeddings = False
    if is_number_head(model):
        kind, state = as_classifier(model, config, state)
    with torch.device("meta"):
        twin: Any = kind(config)
    twin.config.dtype = model.dtype
    if (conversions := getattr(model, "_weight_conversions", None)) is not None:  # those that it was read by
        twin._weight_conversions = conversions
    source = Path(model.name_or_path or "")
    files = [file for pattern in _TOKENIZER for file in source.glob(pattern)] if source.is_dir() else []
    if twin.can_generate():
        twin.generation_config = deepcopy(model.generation_config)
        with suppress(OSError, ValueError):  # a source without a tokenizer, or with one of another library
            ends = ends_of(read_tokenizer(source, None) if files else None, twin.generation_config.eos_token_id)
            twin.generation_config.eos_token_id = (ends[0] if len(ends) == 1 else ends) if ends else None
    twin.save_pretrained(path, state_dict=state)
    if not any(True for pattern in _TOKENIZER for _ in path.glob(pattern)):
        for file in files:
            shutil.copy2(file, path / file.name)
