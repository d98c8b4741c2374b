"""A weight sync compares what the configs of trainer and sampler say of the numbers."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tiny_models import CONFIGS, Build, sgd
from transformers import AutoModelForCausalLM

from twinkle import WeightSync, WeightSyncError
from twinkle.engines import TransformersModel, TransformersSampler


@pytest.mark.parametrize("seed", range(3))
def test_a_sync_compares_what_configs_say_of_the_numbers(seed: int) -> None:
    """Weights of one model in another of the same shapes are refused where it computes other numbers."""
    draw = random.Random(seed)
    others: list[dict[str, Any]] = [
        {"rope_parameters": {"rope_type": "default", "rope_theta": 30.0}},
        {"rms_norm_eps": 0.1},
        {"hidden_act": "gelu"},
        {"use_cache": False, "initializer_range": 0.3},
        {"max_position_embeddings": 999, "attention_dropout": 0.1, "eos_token_id": 3},
        {"rope_parameters": {"rope_theta": 10000, "rope_type": "default"}},
    ]
    build = Build("llama")
    given = draw.sample(others[:3], 1) + others[3 + seed :][:1]
    for fields in given:
        config = CONFIGS["llama"].__class__(**{**CONFIGS["llama"].to_dict(), **fields})
        model, sampler = TransformersModel(build, optimizer=sgd), TransformersSampler(config)
        plain, other = build().eval(), AutoModelForCausalLM.from_config(config).eval()
        other.load_state_dict(plain.state_dict())
        ids = torch.tensor([[1, 2, 3, 4, 5]])
        is_same = torch.allclose(plain(ids).logits, other(ids).logits, atol=1e-4)
        assert is_same == (fields in others[3:])
        if is_same:
            WeightSync(model, sampler)()
        else:
            with pytest.raises(WeightSyncError, match=f"{next(iter(fields))} of its config"):
                WeightSync(model, sampler)()
