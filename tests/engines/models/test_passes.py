from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from peft import LoraConfig
from tiny_models import Build, logprobs_of, sgd
from transformers.models.gpt2.configuration_gpt2 import GPT2Config

from twinkle.engines import Rollouts, TransformersModel

IDS = [[3, 5, 7, 9], [3, 5, 8, 2], [2, 4, 6, 1], [2, 4, 9, 9]]
GPT2 = GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=64)
LORA = LoraConfig(r=8, lora_dropout=0.3, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),  # peft's
    pytest.mark.filterwarnings("ignore:the (whole )?gradient:UserWarning"),  # with advantages of 0 it is 0
]


def drawing(which: str, **options: Any) -> TransformersModel:
    torch.manual_seed(4)
    if which == "lora":
        return TransformersModel(Build("llama"), optimizer=sgd, lora=LORA, **options)
    return TransformersModel(GPT2, optimizer=sgd, **options)


def compared(logprobs: torch.Tensor, batch: Any) -> torch.Tensor:
    return (logprobs - batch["logprobs"]).abs() if "logprobs" in batch else -logprobs


@pytest.mark.parametrize("options", [{"gradient_checkpointing": True}, {"micro_batch_size": 1}, {"max_tokens": 9}])
@pytest.mark.parametrize("which", ["lora", "model"])
def test_a_policy_is_itself_before_any_step(which: str, options: dict[str, Any]) -> None:
    model = drawing(which, **options)
    rows = Rollouts(IDS, counts=[2, 2], advantages=[0.0] * 4)
    rows = rows.replace(logprobs=logprobs_of(model, rows))
    rows = rows.replace(ref_logprobs=rows.logprobs)
    assert model.forward_backward(rows, "grpo", beta=1.0)["loss"] == pytest.approx(0, abs=1e-6)
    model.step()
    model = drawing(which, **options)
    assert model.forward_backward(rows, compared)["loss"] == pytest.approx(0, abs=1e-5)
    model.step()
    if "max_tokens" not in options:
        model = drawing(which, **options)
        assert model.forward_backward(rows, "dpo")["loss"] == pytest.approx(math.log(2), abs=1e-6)
    model = drawing(which, dropout=True, **options)
    assert model.forward_backward(rows, "grpo", beta=1.0)["loss"] > 1e-4


def test_activations_are_computed_anew_with_the_same_draws() -> None:
    norms = []
    for checkpointing in (False, True):
        model = drawing("model", gradient_checkpointing=checkpointing, dropout=True)
        torch.manual_seed(3)
        model.forward_backward(Rollouts(IDS))
        norms.append(model.step()["grad_norm"])
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)
