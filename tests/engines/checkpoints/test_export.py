"""Exports: a folder holds one thing, and changes at once or not at all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file
from tiny_models import CONFIGS, Build, logprobs_of, ragged, sgd
from tiny_tokenizer import tiny_tokenizer
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig
from transformers.models.gpt_neox import GPTNeoXConfig

from twinkle.engines import TransformersModel

if TYPE_CHECKING:
    from pathlib import Path

LORA = LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False)


def check_exported(folder: Path, model: TransformersModel) -> None:
    batch = ragged(3, 1)
    read = AutoModelForCausalLM.from_pretrained(folder).eval()
    again = TransformersModel(lambda: read, optimizer=sgd)
    for own, theirs in zip(logprobs_of(model, batch), logprobs_of(again, batch), strict=True):
        assert_close(own, theirs, rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft reads it
def test_a_folder_with_other_weights_is_refused(tmp_path: Path) -> None:
    Build("llama")().save_pretrained(tmp_path / "base")
    model = TransformersModel(tmp_path / "base", optimizer=sgd, lora=LORA)
    before = {path.name: path.read_bytes() for path in (tmp_path / "base").iterdir()}
    whole = TransformersModel(Build("llama"), optimizer=sgd)
    for other in (model, whole):
        with pytest.raises(ValueError, match=r"holds model\.safetensors"):
            other.save_pretrained(tmp_path / "base")
    assert {path.name: path.read_bytes() for path in (tmp_path / "base").iterdir()} == before
    model.save_pretrained(tmp_path / "own")
    assert json.loads((tmp_path / "own" / "adapter_config.json").read_text())["inference_mode"]
    with pytest.raises(ValueError, match="holds adapter_model"):
        whole.save_pretrained(tmp_path / "own")
    PeftModel.from_pretrained(Build("llama")(), tmp_path / "own")


def test_an_export_has_the_class_the_ends_and_the_tokenizer_of_its_source(tmp_path: Path) -> None:
    config = LlamaConfig(**{**CONFIGS["llama"].to_diff_dict(), "vocab_size": 300})
    model = AutoModelForCausalLM.from_config(config)
    model.generation_config = GenerationConfig(eos_token_id=5)
    model.save_pretrained(tmp_path / "source")
    tiny_tokenizer().save_pretrained(tmp_path / "source")
    TransformersModel(tmp_path / "source", optimizer=sgd).save_pretrained(tmp_path / "made")
    assert GenerationConfig.from_pretrained(tmp_path / "made").eos_token_id == [5, 0]
    assert json.loads((tmp_path / "made" / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    assert AutoTokenizer.from_pretrained(tmp_path / "made").encode("A class") == tiny_tokenizer().encode("A class")


def test_weights_have_their_published_names(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
    }
    model = AutoModelForCausalLM.from_config(GPTNeoXConfig(vocab_size=61, max_position_embeddings=64, **sizes))
    model.save_pretrained(tmp_path / "theirs")
    theirs = load_file(tmp_path / "theirs" / "model.safetensors")
    TransformersModel(lambda: model, optimizer=sgd).save_pretrained(tmp_path / "own")
    own = load_file(tmp_path / "own" / "model.safetensors")
    assert own.keys() == theirs.keys() and all(torch.equal(weight, theirs[name]) for name, weight in own.items())


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("made", ["as the config", "of its own", "tied"])
@pytest.mark.parametrize(("family", "ties"), [("llama", False), ("qwen2", True)])
def test_the_config_says_whether_the_head_is_tied(family: str, ties: bool, made: str, tmp_path: Path) -> None:
    """Loaders other than Transformers look for no head where the config says that it is tied."""

    def build() -> Any:
        model = Build(family)()
        if made == "of its own":
            model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() + 0.1)
        elif made == "tied":
            model.lm_head.weight = model.model.embed_tokens.weight
        return model

    model = TransformersModel(build, optimizer=sgd)
    model.forward_backward(ragged(3, 2))
    model.step()
    model.save_pretrained(tmp_path)
    held = load_file(tmp_path / "model.safetensors")
    head, first = held.get("lm_head.weight"), held["model.embed_tokens.weight"]
    is_tied = json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"]
    assert is_tied == (head is None) == (ties and made in ("as the config", "tied"))
    assert made != "tied" or head is None or torch.equal(head, first)
    check_exported(tmp_path, model)
