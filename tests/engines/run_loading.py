"""Models of folders and configs on ranks that each have their part: `run_loading.py folder`, with the folders in it."""

import json
from pathlib import Path
from sys import argv
from typing import Any

import torch
import torch.distributed as dist
from peft import LoraConfig
from run_training import run_layouts
from tiny_models import CONFIGS, logprobs_of, ragged, sgd

import twinkle
from twinkle import DeviceGroup, DeviceMesh
from twinkle.engines import TransformersModel

LORA = LoraConfig(r=4, target_modules=["q_proj", "down_proj"])
SOURCES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen2": ("qwen2", {}),
    "qwen3-moe": ("qwen3-moe", {}),
    "lora": ("llama", {"lora": LORA}),
    "score": ("qwen2", {"head": "score"}),
    "value": ("llama", {"head": "value"}),
    "drawn-qwen2": ("qwen2", {}),
    "drawn-qwen3-moe": ("qwen3-moe", {}),
    "drawn-value": ("qwen3", {"head": "value"}),
    "drawn-lora": ("llama", {"lora": LORA}),
}
"""By name: the folder, or the config of those that are drawn, and options of the model."""
UNDIVIDED = ("qwen3-moe", "lora", "drawn-qwen3-moe", "drawn-lora")
"""Without tp: experts and adapters."""


def towards_one(numbers: torch.Tensor, batch: Any) -> torch.Tensor:
    """The squared distance of values, or scores, from 1."""
    return (numbers - 1) ** 2


def figures(folder: Path, mesh: DeviceMesh | None) -> dict[str, list[float]]:
    found = {}
    for name, (source, options) in SOURCES.items():
        if name in UNDIVIDED and mesh is not None and mesh.size("tp") > 1:
            continue
        given = CONFIGS[source] if name.startswith("drawn") else folder / source
        ranks = 1 if mesh is None else mesh.world_size
        with twinkle.session("local", groups=[DeviceGroup("trainer", ranks, "CPU")]):  # its first component
            model = TransformersModel(given, optimizer=sgd, device_mesh=mesh, remote_group="trainer", **options)
            steps = []
            for _ in range(2):
                told = model.forward_backward(ragged(4, 1), towards_one if "head" in options else "cross_entropy")
                steps += [told["loss"], model.step()["grad_norm"]]
            numbers = [float(row.sum()) for row in logprobs_of(model, ragged(4, 2))]
        found[name] = [*steps, *numbers]
    return found


def divided(folder: Path, mesh: DeviceMesh) -> None:
    told = figures(folder, mesh)
    layout = "x".join(str(mesh.size(dim)) for dim in ("dp", "fsdp", "tp"))
    (folder / f"{layout}-{dist.get_rank()}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    run_layouts(Path(argv[1]), ["1x2x1", "1x2x2"], divided)
