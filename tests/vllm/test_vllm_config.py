from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_engine import ENGINE, SIZES
from tiny_models import sgd
from transformers import LlamaConfig

from twinkle import WeightSync
from twinkle.engines import SamplingParams, TransformersModel, VLLMSampler, mismatch

PARAMS = SamplingParams(n=2, max_new_tokens=8, seed=0)


def test_a_config_has_random_weights_until_a_sync_brings_some(session: None) -> None:
    """Of a Llama with a head of its own: three names fused to one in attention, two in the feed-forward layers."""
    config = LlamaConfig(**SIZES, tie_word_embeddings=False)
    trainer = TransformersModel(config, optimizer=None, dtype="bfloat16")
    sampler: Any = VLLMSampler(config, **ENGINE)
    rollouts = sampler.sample([[1, 2, 3]], PARAMS)
    assert mismatch(trainer.annotate(rollouts, "proximal"))["worst"] > 1.01
    reference = TransformersModel(config, optimizer=sgd)
    with torch.no_grad():
        for name, weight in reference.weights().items():
            weight.copy_(trainer.weights()[name])
    with pytest.raises(Exception, match="convert=True converts"):
        WeightSync(trainer, sampler)()
    WeightSync(trainer, sampler, convert=True)()
    rollouts = sampler.sample([[1, 2, 3]], PARAMS)
    assert mismatch(reference.annotate(rollouts, "proximal"))["worst"] < 1.0001
