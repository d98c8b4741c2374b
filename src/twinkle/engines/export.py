"""Writes a divided model as safetensors that `from_pretrained` loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from safetensors.torch import save_file
from transformers.core_model_loading import revert_weight_conversion

from twinkle.engines.columns import alone
from twinkle.engines.merging import Merged, merged_weights, whole
from twinkle.engines.pretrained import named_weights
from twinkle.engines.tensor_parallel import plain_model

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from torch import Tensor

MOST_BYTES = 2 << 30
"""Size of one file of weights; the first rank holds as many bytes."""


def export(model: Any, folder: str | PathLike[str], merge: bool = False) -> None:
    """Write a model's configuration and weights; all ranks call this, the first one writes.

    Args:
        model: The model; of one with adapters these alone are written, by peft's file names.
        folder: Where to; it is made.
        merge: Write the model with its adapters added to its weights.
    """
    path = Path(folder)
    writes = dist.get_rank() == 0
    adapters = hasattr(model, "peft_config")
    if writes:
        path.mkdir(parents=True, exist_ok=True)
    if adapters and not merge:
        parts = {name: whole(weight.detach()) for name, weight in named_weights(model).items()}
        if writes:
            model.peft_config["default"].save_pretrained(path)
            save_file(parts, path / "adapter_model.safetensors", {"format": "pt"})
    else:
        own = plain_model(model)
        state = own.state_dict(keep_vars=True)
        weights = merged_weights(model) if adapters else {name: Merged(weight) for name, weight in state.items()}
        if writes:
            own.config.save_pretrained(path)
            if own.can_generate():
                own.generation_config.save_pretrained(path)
        # A tie is read by its first name.
        first = {*{(id(one.weight), id(one.up)): name for name, one in reversed(weights.items())}.values()}
        _write_weights(own, {name: one for name, one in weights.items() if name in first}, path, writes)
    dist.barrier()


def _write_weights(model: Any, weights: Mapping[str, Merged], path: Path, writes: bool) -> None:
    files = _files(weights)
    single = len(files) == 1
    places: dict[str, str] = {}
    for number, names in enumerate(files, 1):
        file = "model.safetensors" if single else f"model-{number:05d}-of-{len(files):05d}.safetensors"
        kept: dict[str, Tensor] = {}
        for name in names:
            tensor = weights[name].whole()
            if writes:
                kept[name] = tensor
        if writes:
            # By the names of published files, in which each expert has its own; a part of a tensor gets its own memory.
            published = revert_weight_conversion(model, kept)
            save_file({n: alone(t.contiguous()) for n, t in published.items()}, path / file, {"format": "pt"})
            places |= dict.fromkeys(published, file)
    if writes and not single:
        index = {"metadata": {"total_size": sum(weight.nbytes for weight in weights.values())}, "weight_map": places}
        (path / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")


def _files(weights: Mapping[str, Merged]) -> list[list[str]]:
    """Names by file, in order; a file is at most MOST_BYTES long, or holds one tensor."""
    files: list[list[str]] = [[]]
    size = 0
    for name, weight in weights.items():
        if files[-1] and size + weight.nbytes > MOST_BYTES:
            files.append([])
            size = 0
        files[-1].append(name)
        size += weight.nbytes
    return files
