"""Trains tiny models on two ranks of tp: `run_two_ranks.py folder`."""

import json
from functools import partial
from pathlib import Path
from sys import argv
from typing import Any

import torch
import torch.distributed as dist
from peft import LoraConfig
from run_training import run_layouts
from tiny_models import SIZES, Build, logprobs_of, ragged, sgd
from transformers import AutoModelForCausalLM
from transformers.models.apertus.configuration_apertus import ApertusConfig
from transformers.models.phi.configuration_phi import PhiConfig

import twinkle
from twinkle import DeviceGroup, DeviceMesh
from twinkle.engines import Rollouts, TransformersModel

LORA: dict[str, Any] = {"r": 4, "target_modules": ["q_proj", "o_proj"], "init_lora_weights": False}
STRANGE = {
    "apertus": ApertusConfig(**SIZES, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
    "phi": PhiConfig(**{**SIZES, "num_key_value_heads": 4}, qk_layernorm=True),
}


def build(name: str) -> Any:
    def made() -> Any:
        torch.manual_seed(5)
        return AutoModelForCausalLM.from_config(STRANGE[name])

    return made


def model_of(source: Any, mesh: DeviceMesh | None, **options: Any) -> TransformersModel:
    torch.manual_seed(6)
    return TransformersModel(source, optimizer=sgd, device_mesh=mesh, remote_group="trainer", **options)


def error_of(program: Any) -> str:
    try:
        program()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def step(model: TransformersModel, **options: Any) -> list[float]:
    loss = model.forward_backward(ragged(4, 1), **options)["loss"]
    return [loss, model.step()["grad_norm"]]


SAVED = {"tied": ("qwen2", {"compute_dtype": None}), "untied": ("llama", {})}


def figures(name: str, mesh: DeviceMesh | None) -> list[Any]:
    family, options = SAVED[name]
    model = model_of(Build(family), mesh, **options)
    before = step(model)
    return [before, step(model), [row.tolist() for row in logprobs_of(model, ragged(3, 2))]]


def divided(folder: Path, mesh: DeviceMesh) -> None:
    told: dict[str, Any] = {}
    with twinkle.session("local", groups=[DeviceGroup("trainer", 2, "CPU")]):
        for name in SAVED:
            told[name] = figures(name, mesh)
        model = model_of(Build("llama"), mesh)
        wrong = Rollouts([[61, 2, 3], [4, 5, 6]])
        told["ids"] = [
            error_of(lambda call=call: call(wrong))
            for call in (model.forward_backward, partial(model.annotate, column="proximal"))
        ]
        for name in STRANGE:
            strange = model_of(build(name), mesh)
            strange.forward_backward(ragged(4, 1))
            told[name] = error_of(strange.step)
        told["experts"] = error_of(lambda: model_of(Build("qwen3-moe"), mesh))
        told["adapters"] = error_of(lambda: model_of(Build("llama"), mesh, lora=LoraConfig(**LORA)))
        told["dropout"] = error_of(lambda: model_of(Build("llama"), mesh, dropout=True))
    (folder / f"divided-{dist.get_rank()}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    run_layouts(Path(argv[1]), ["1x1x2"], divided)
