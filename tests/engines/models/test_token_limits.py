from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from tiny_models import VOCABULARY, Build, sgd
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.models.gpt2.configuration_gpt2 import GPT2Config
from transformers.models.opt.configuration_opt import OPTConfig

from twinkle.engines import Rollouts, TransformersModel
from twinkle_engines.models.token_limits import token_limits

SMALL: dict[str, Any] = {"vocab_size": VOCABULARY, "num_hidden_layers": 1, "num_attention_heads": 2}
GPT2 = GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=1, n_head=2, n_positions=16)
OPT = OPTConfig(**SMALL, hidden_size=16, ffn_dim=16, word_embed_proj_dim=16, max_position_embeddings=16)


@pytest.mark.parametrize("options", [{}, {"max_tokens": 40}])
def test_an_id_that_the_model_does_not_know_is_named(options: dict[str, Any]) -> None:
    model = TransformersModel(Build("llama"), optimizer=sgd, **options)
    for token, place in itertools.product([VOCABULARY, VOCABULARY + 900, -1], [0, 2, 4]):
        ids = [[1, 2, 3, 4, 5], [5, 4, 3]]
        ids[0][place] = token
        for call in (model.forward_backward, model.logprobs):
            with pytest.raises(ValueError, match=rf"id {token}, .*there are {VOCABULARY} "):
                call(Rollouts(ids))
        model.forward_backward(Rollouts([[1, 2, 3]]))  # what could not be read leaves nothing behind


def test_a_label_that_the_head_does_not_predict_is_named() -> None:
    batch = {"input_ids": torch.tensor([[1, 2, 3]]), "labels": torch.tensor([[-100, 2, VOCABULARY]])}
    with pytest.raises(ValueError, match=f"label {VOCABULARY}"):
        TransformersModel(Build("llama"), optimizer=sgd).forward_backward(batch)


@pytest.mark.parametrize("config", [GPT2, OPT])
def test_a_sequence_beyond_a_table_of_positions_is_named(config: Any) -> None:
    assert token_limits(AutoModelForCausalLM.from_config(config)).positions == 16
    model = TransformersModel(config, optimizer=sgd)
    model.forward_backward(Rollouts([list(range(16))]))
    with pytest.raises(ValueError, match=r"17 tokens, .* positions for 16"):
        model.forward_backward(Rollouts([[1, 2], list(range(17))]))


def test_rotary_positions_have_no_end() -> None:
    config = LlamaConfig(**SMALL, hidden_size=16, intermediate_size=16, max_position_embeddings=16)
    assert token_limits(AutoModelForCausalLM.from_config(config)).positions is None
