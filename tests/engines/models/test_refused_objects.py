"""Objects of other libraries in a place where they look right are refused by what to use."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import Build
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, LlamaConfig
from transformers.models.gpt_neox.configuration_gpt_neox import GPTNeoXConfig

import twinkle
from twinkle.engines import TransformersModel, save
from twinkle_engines.models.pretrained import check_head

SIZES: dict[str, Any] = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}


def test_an_optimizer_in_place_of_what_makes_one() -> None:
    made: Any = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    with twinkle.session("local"), pytest.raises(TypeError, match="optimizer="):
        TransformersModel(Build("qwen2"), optimizer=made)


@pytest.mark.parametrize("config", [LlamaConfig, GPTNeoXConfig])
def test_a_head_is_over_the_vocabulary(config: Any) -> None:
    sizes = {**SIZES, "num_attention_heads": 4}
    check_head(AutoModelForCausalLM.from_config(config(**sizes)))
    with pytest.raises(TypeError, match="vocabulary"):
        check_head(AutoModelForSequenceClassification.from_config(config(**sizes)))


def test_several_models_in_one_checkpoint(tmp_path: Any) -> None:
    several: Any = [object(), object()]
    with pytest.raises(TypeError, match="one model"):
        save(tmp_path, model=several)
