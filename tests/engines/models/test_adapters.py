from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from run_training import whole
from safetensors.torch import load_file, save_file
from tiny_models import Build, adamw, logprobs_of, plain_logprobs, ragged, sequences, sgd
from torch.testing import assert_close
from transformers import AutoModelForCausalLM

from twinkle import WeightSync
from twinkle.engines import SamplingParams, TransformersModel, TransformersSampler, mismatch
from twinkle_engines.models.build import build_model

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),  # peft reads it
    pytest.mark.filterwarnings("ignore::UserWarning"),  # what peft advises against is what is tested
]


def lora(**options: Any) -> LoraConfig:
    return LoraConfig(**{"r": 4, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", **options})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Build("llama")().save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def trained(folder: Path, path: Path) -> TransformersModel:
    model = TransformersModel(folder, optimizer=adamw, lora=lora())
    for seed in range(3):
        model.forward_backward(ragged(4, seed))
        model.step()
    model.save_pretrained(path)
    return model


def test_the_folder_of_an_adapter_goes_on_training_that_one(folder: Path, tmp_path: Path) -> None:
    model = trained(folder, tmp_path / "adapter")
    again = TransformersModel(tmp_path / "adapter", optimizer=adamw)
    for own, other in zip(logprobs_of(model, ragged(3, 9)), logprobs_of(again, ragged(3, 9)), strict=True):
        assert_close(own, other, rtol=0, atol=1e-6)
    assert again.weights().keys() == model.weights().keys()
    before = {name: whole(weight) for name, weight in again.weights().items()}
    again.forward_backward(ragged(4, 5))
    again.step()
    assert all(not torch.equal(whole(weight), before[name]) for name, weight in again.weights().items())
    again.save_pretrained(tmp_path / "more")
    read = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), str(tmp_path / "more"))
    with torch.no_grad():
        for (ids, _), row in zip(sequences(ragged(3, 2)), logprobs_of(again, ragged(3, 2)), strict=True):
            assert_close(row, plain_logprobs(read, ids), rtol=0, atol=1e-5)


@pytest.mark.parametrize("seed", range(2))
def test_what_files_do_not_have_is_not_made_up(folder: Path, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    trained(folder, tmp_path / "adapter")
    whole_model = load_file(folder / "model.safetensors")
    for place, file in ((tmp_path / "adapter", "adapter_model.safetensors"), (folder, "model.safetensors")):
        weights = load_file(place / file)
        name = draw.choice(sorted(weights))
        for damaged in ({**weights, f"base_model.model.{name}": weights[name].clone()}, dict(weights)):
            is_more = damaged.pop(name) is not None and len(damaged) == len(weights)
            save_file(damaged, place / file, {"format": "pt"})
            assert is_more or len(damaged) < len(weights)
            with pytest.raises(ValueError, match=r"has no weights for|does not fit its config"):
                TransformersModel(place, optimizer=adamw)
        save_file(weights, place / file, {"format": "pt"})
    assert whole_model.keys() == build_model(folder, torch.float32, None)[0].state_dict().keys()


def test_a_fresh_adapter_does_not_take_the_place_of_one(folder: Path, tmp_path: Path) -> None:
    trained(folder, tmp_path / "adapter")
    with pytest.raises(ValueError, match="adapter already"):
        TransformersModel(tmp_path / "adapter", optimizer=adamw, lora=lora())
    with pytest.raises(ValueError, match="adapter already"):
        TransformersModel(lambda: get_peft_model(Build("llama")(), lora()), optimizer=adamw, lora=lora())
    with pytest.raises(ValueError, match="outside of the model"):
        TransformersModel(lambda: AutoModelForCausalLM.from_pretrained(tmp_path / "adapter"), optimizer=adamw)
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(tmp_path / "adapter")
    with pytest.raises(ValueError, match="a model and an adapter"):
        TransformersModel(tmp_path / "adapter", optimizer=adamw)


@pytest.mark.parametrize("start", ["pissa", "pissa_niter_4", "olora"])
def test_a_start_that_changes_the_base_is_refused(start: Any) -> None:
    with pytest.raises(ValueError, match="init_lora_weights"):
        TransformersModel(Build("llama"), lora=lora(init_lora_weights=start), optimizer=sgd)
    with pytest.raises(ValueError, match="init_lora_weights"):
        TransformersSampler(Build("llama"), lora=lora(init_lora_weights=start))


def test_adapters_of_another_name_and_frozen_ones_are_refused(tmp_path: Path) -> None:
    get_peft_model(Build("llama")(), lora()).save_pretrained(str(tmp_path))

    def named() -> Any:
        return PeftModel.from_pretrained(Build("llama")(), tmp_path, adapter_name="policy", is_trainable=True)

    with pytest.raises(ValueError, match="the adapters policy"):
        TransformersModel(named, optimizer=sgd)
    with pytest.raises(ValueError, match="the adapters policy"):
        TransformersSampler(named)
    with pytest.raises(ValueError, match="is_trainable=True"):
        TransformersModel(lambda: PeftModel.from_pretrained(Build("llama")(), tmp_path), optimizer=sgd)
    TransformersSampler(lambda: PeftModel.from_pretrained(Build("llama")(), tmp_path))


@pytest.mark.parametrize(
    ("of_model", "of_sampler", "seed", "message"),
    [
        ({}, {}, 5, None),
        ({"lora_alpha": 8}, {"lora_alpha": 64}, 5, "lora_alpha"),
        ({"use_rslora": True}, {}, 5, "use_rslora"),
        ({"alpha_pattern": {"q_proj": 3}}, {}, 5, "alpha_pattern"),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sync_compares_bases_and_scalings(
    of_model: Any, of_sampler: Any, seed: int, message: str | None, dtype: str
) -> None:
    model = TransformersModel(Build("llama"), optimizer=adamw, lora=lora(**of_model))
    sampler = TransformersSampler(Build("llama", seed), lora=lora(**of_sampler), dtype=dtype)
    sync = WeightSync(model, sampler)
    if message is not None:
        with pytest.raises(ValueError, match=message):
            sync()
        return
    for _ in range(2):
        model.forward_backward(ragged(4, 1))
        model.step()
        sync()
    made = sampler.sample([[5, 6, 7], [8, 9]], SamplingParams(max_new_tokens=8))
    assert dtype == "bfloat16" or mismatch(model.annotate(made, "proximal"))["worst"] < 1.001


@pytest.mark.parametrize(
    "options",
    [
        {"modules_to_save": ["norm"]},
        {"modules_to_save": ["lm_head"]},
        {"bias": "all"},
        {"bias": "lora_only"},
    ],
)
def test_what_is_trained_beside_adapters_of_a_short_model_is_held_in_float32(options: Any) -> None:
    model = TransformersModel(Build("qwen2"), optimizer=adamw, lora=lora(**options), dtype="bfloat16")
    for seed in range(2):
        model.forward_backward(ragged(4, seed))
        assert model.step()["grad_norm"] > 0
    assert {weight.dtype for weight in model.weights().values()} == {torch.float32}


@pytest.mark.parametrize("family", ["llama", "qwen2"])  # a head of its own, and a tied one
def test_single_tokens_are_trained_written_and_read(family: str, tmp_path: Path) -> None:
    Build(family)().save_pretrained(tmp_path / "base")
    config = lora(trainable_token_indices=[1, 5, 9])
    model = TransformersModel(tmp_path / "base", optimizer=adamw, lora=config)
    for seed in range(2):
        model.forward_backward(ragged(4, seed))
        model.step()
    model.save_pretrained(tmp_path / "adapter")
    read = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), str(tmp_path / "adapter"))
    with torch.no_grad():
        for (ids, _), row in zip(sequences(ragged(3, 2)), logprobs_of(model, ragged(3, 2)), strict=True):
            assert_close(row, plain_logprobs(read, ids), rtol=0, atol=1e-5)
