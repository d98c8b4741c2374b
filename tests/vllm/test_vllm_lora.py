from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig
from tiny_engine import ENGINE
from tiny_models import adamw

from twinkle import WeightSync
from twinkle.engines import SamplingParams, TransformersModel, VLLMSampler, mismatch

PARAMS = SamplingParams(n=2, max_new_tokens=8, seed=0)


def test_adapters_alone_are_synced(session: None, folder: str) -> None:
    """Without an end to the first weights: a base model that was read once, adapters at each version."""
    lora = LoraConfig(r=2, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
    trainer = TransformersModel(folder, optimizer=adamw, lora=lora)
    sampler: Any = VLLMSampler(folder, lora=lora, **ENGINE)
    assert set(sampler.weights()) == set(trainer.weights()) and all("lora" in name for name in sampler.weights())
    sync = WeightSync(trainer, sampler)
    prompt = [int(token) for token in torch.randint(1, 300, (300,), generator=torch.Generator().manual_seed(0))]
    before = sampler.sample([prompt], PARAMS)
    assert mismatch(trainer.annotate(before, "proximal"))["worst"] < 1.001
    for version in (1, 2):
        for _ in range(3):
            trainer.forward_backward(before)
            trainer.step()
        old = sampler.sample([prompt], PARAMS)
        assert mismatch(trainer.annotate(old, "proximal"))["worst"] > 1.01
        assert sync() == version
        new = sampler.sample([prompt], PARAMS)
        assert mismatch(trainer.annotate(new, "proximal"))["worst"] < 1.001
        assert {int(one) for row in new.versions for one in row} == {version}
