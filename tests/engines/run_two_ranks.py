"""Trains tiny models on two ranks of tp, and lets one of two data ranks fail: `run_two_ranks.py folder`."""

import json
import time
from pathlib import Path
from sys import argv
from typing import Any

import torch
import torch.distributed as dist
from peft import LoraConfig
from run_training import run_layouts, whole
from tiny_models import SIZES, Build, ragged, sgd
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


SAVED = {
    "head": ("qwen3", {"lora": LoraConfig(**LORA, modules_to_save=["lm_head"])}),
    "embeddings": ("qwen3", {"lora": LoraConfig(**LORA, modules_to_save=["embed_tokens"])}),
    "norms": ("llama", {"lora": LoraConfig(**LORA, modules_to_save=["norm"])}),
    "tied": ("qwen2", {}),
}


def figures(name: str, mesh: DeviceMesh | None) -> list[Any]:
    family, options = SAVED[name]
    model = model_of(Build(family), mesh, **options)
    before = step(model)
    return [before, step(model), [row.tolist() for row in model.logprobs(ragged(3, 2))]]


def divided(folder: Path, mesh: DeviceMesh) -> None:
    told: dict[str, Any] = {}
    with twinkle.session("local", groups=[DeviceGroup("trainer", 2, "CPU")]):
        for name in SAVED:
            told[name] = figures(name, mesh)
        model = model_of(Build("llama"), mesh, lora=LoraConfig(**LORA, lora_dropout=0.3))
        torch.manual_seed(100 + dist.get_rank())
        for seed in range(2):
            model.forward_backward(ragged(4, seed))
            model.step()
        told["dropout"] = sum(float(whole(weight).double().sum()) for weight in model.weights().values())
        wrong = Rollouts([[61, 2, 3], [4, 5, 6]])
        told["ids"] = [error_of(lambda call=call: call(wrong)) for call in (model.forward_backward, model.logprobs)]
        for name in STRANGE:
            strange = model_of(build(name), mesh)
            strange.forward_backward(ragged(4, 1))
            told[name] = error_of(strange.step)
        experts = LoraConfig(**LORA, target_parameters=["mlp.experts.gate_up_proj"])
        told["experts"] = error_of(lambda: model_of(Build("qwen3-moe"), mesh, lora=experts))
        tokens = LoraConfig(**LORA, trainable_token_indices=[1, 2])
        told["tokens"] = error_of(lambda: model_of(Build("llama"), mesh, lora=tokens))
    (folder / f"divided-{dist.get_rank()}.json").write_text(json.dumps(told))


def failing(folder: Path, mesh: DeviceMesh) -> None:
    """The forward pass of one data rank fails in its second layer, behind collectives that the other waits in."""

    def made() -> Any:
        model = Build("llama")()
        if dist.get_rank() == 1:
            layer: Any = model.model.layers[1]
            forward, calls = layer.mlp.forward, []

            def spoiled(*given: Any) -> Any:
                calls.append(given)
                if torch.is_grad_enabled() and given[0].shape[0] == 3:  # a batch, and not what is measured before
                    raise MemoryError("no room on this rank")
                return forward(*given)

            layer.mlp.forward = spoiled
        return model

    begun = time.monotonic()
    told = ""
    try:
        with twinkle.session("local", groups=[DeviceGroup("trainer", 2, "CPU")]):
            told = error_of(lambda: model_of(made, mesh).forward_backward(ragged(6, 1)))
    except Exception as error:
        told = told or str(error)
    (folder / f"failing-{dist.get_rank()}.json").write_text(json.dumps([told, time.monotonic() - begun]))


if __name__ == "__main__":
    run_layouts(Path(argv[1]), ["1x1x2"], divided)
    run_layouts(Path(argv[1]), ["1x2x1"], failing)
