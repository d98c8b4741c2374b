"""Objects of other libraries in a place where they look right are refused by what to use."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_models import Build, sgd
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, LlamaConfig
from transformers.models.gpt_neox.configuration_gpt_neox import GPTNeoXConfig

import twinkle
from twinkle.engines import TransformersModel, TransformersSampler, save
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


def given_back(model: Any) -> Any:
    return model


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft reads it
def test_a_model_belongs_to_one_component() -> None:
    model, other = Build("qwen2")(), Build("qwen2")()
    adapted = get_peft_model(other, LoraConfig(r=2, target_modules=["q_proj"]))
    makers: list[Any] = [partial(TransformersModel, optimizer=sgd), TransformersSampler]
    with twinkle.session("local"):
        for first in (model, adapted):
            same = deepcopy(first)
            TransformersModel(partial(given_back, first), optimizer=sgd)
            for make in makers:
                make(partial(deepcopy, same))
                with pytest.raises(ValueError, match="another component"):
                    make(partial(given_back, first))
