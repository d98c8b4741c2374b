"""Writes a divided model as safetensors that `from_pretrained` loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from torch import Tensor

MOST_BYTES = 2 << 30
"""Size of one file of weights; the first rank holds as many bytes."""


def export(model: Any, weights: Mapping[str, Tensor], folder: str | PathLike[str]) -> None:
    """Write a model's configuration and weights; all ranks call this, the first one writes."""
    path = Path(folder)
    writes = dist.get_rank() == 0
    if writes:
        path.mkdir(parents=True, exist_ok=True)
    if hasattr(model, "peft_config"):
        whole = {name: _whole(weight) for name, weight in weights.items()}
        if writes:
            model.peft_config["default"].save_pretrained(path)
            save_file(whole, path / "adapter_model.safetensors", {"format": "pt"})
    else:
        if writes:
            model.config.save_pretrained(path)
            if model.can_generate():
                model.generation_config.save_pretrained(path)
        every = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        ties = every - {name for name, _ in model.named_parameters()}  # read again under the first name
        _write_weights({name: weight for name, weight in weights.items() if name not in ties}, path, writes)
    dist.barrier()


def _write_weights(weights: Mapping[str, Tensor], path: Path, writes: bool) -> None:
    files = _files(weights)
    single = len(files) == 1
    places: dict[str, str] = {}
    for number, names in enumerate(files, 1):
        file = "model.safetensors" if single else f"model-{number:05d}-of-{len(files):05d}.safetensors"
        kept: dict[str, Tensor] = {}
        for name in names:
            whole = _whole(weights[name])
            if writes:
                kept[name] = whole
            places[name] = file
        if writes:
            save_file(kept, path / file, {"format": "pt"})
    if writes and not single:
        total = sum(weight.numel() * weight.element_size() for weight in weights.values())
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (path / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")


def _files(weights: Mapping[str, Tensor]) -> list[list[str]]:
    """Names by file, in order; a file is at most MOST_BYTES long, or holds one tensor."""
    files: list[list[str]] = [[]]
    size = 0
    for name, weight in weights.items():
        length = weight.numel() * weight.element_size()
        if files[-1] and size + length > MOST_BYTES:
            files.append([])
            size = 0
        files[-1].append(name)
        size += length
    return files


def _whole(weight: Tensor) -> Tensor:
    return (weight.full_tensor() if isinstance(weight, DTensor) else weight).detach().cpu().contiguous()
