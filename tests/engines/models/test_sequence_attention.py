"""Packs are attended to by sequence, with the numbers that each sequence has alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import CONFIGS, SIZES, plain_logprobs, sgd
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, Qwen2Config
from transformers.models.gemma2.configuration_gemma2 import Gemma2Config
from transformers.models.gemma3.configuration_gemma3 import Gemma3TextConfig
from transformers.models.gpt2.configuration_gpt2 import GPT2Config
from transformers.models.mistral.configuration_mistral import MistralConfig

from twinkle.engines import Rollouts, TransformersModel
from twinkle_engines.models.neighbours import measure_attention
from twinkle_engines.models.sequence_attention import attention_by_sequence, can_attend_by_sequence

LENGTHS = (12, 1, 5, 30, 2, 9, 12, 3)
BY_SEQUENCE: dict[str, Any] = {
    "llama": CONFIGS["llama"],
    "window": MistralConfig(**SIZES, sliding_window=4),
    "mixed windows": Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=4, max_window_layers=1),
    "gemma3": Gemma3TextConfig(**SIZES, head_dim=8, sliding_window=4),
    "gpt2": GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=64),
}
CPU = torch.device("cpu")


def build(config: Any) -> Any:
    torch.manual_seed(3)
    return AutoModelForCausalLM.from_config(config).eval()


def rollouts() -> Rollouts:
    generator = torch.Generator().manual_seed(1)
    ids = [torch.randint(2, 61, (length,), generator=generator) for length in LENGTHS]
    return Rollouts(ids, [(torch.rand(len(one), generator=generator) < 0.5).long() for one in ids])


@pytest.mark.parametrize("family", BY_SEQUENCE)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_packs_have_the_gradients_of_sequences_alone(family: str, checkpointing: bool) -> None:
    rows, model = rollouts(), build(BY_SEQUENCE[family])
    assert can_attend_by_sequence(model, CPU) and measure_attention(model, CPU)
    masks: list[Any] = list(rows.mask or [])
    found = [-(plain_logprobs(model, ids) * mask)[1:].sum() for ids, mask in zip(rows.ids, masks, strict=True)]
    count = sum(int(mask[1:].sum()) for mask in masks)
    total: Any = torch.stack(found).sum() / count
    total.backward()
    norm = float(torch.nn.utils.get_total_norm([one.grad for one in model.parameters() if one.grad is not None]))
    own = TransformersModel(
        lambda: build(BY_SEQUENCE[family]), optimizer=sgd, max_tokens=40, gradient_checkpointing=checkpointing
    )
    told = own.forward_backward(rows, dropout=False)
    assert told == {"loss": pytest.approx(total.item(), rel=1e-5), "tokens": count}
    assert own.step()["grad_norm"] == pytest.approx(norm, rel=1e-4)


def test_a_pass_leaves_the_model_its_own_attention() -> None:
    model = build(CONFIGS["llama"])
    ids = torch.randint(2, 61, (2, 7))
    before = model(input_ids=ids).logits
    with attention_by_sequence(model, True):
        inside = model(input_ids=ids).logits  # rows without packs
        assert not can_attend_by_sequence(model, CPU)
    assert can_attend_by_sequence(model, CPU)
    assert_close(inside, before)


def test_other_attention_stays_as_it_is() -> None:
    eager = build(Gemma2Config(**SIZES, head_dim=8, sliding_window=4))
    eager.set_attn_implementation("eager")  # newer Transformers choose it by themselves: its softcap is not for sdpa
    assert not can_attend_by_sequence(eager, CPU)
    assert not can_attend_by_sequence(build(CONFIGS["llama"]), torch.device("meta"))


@pytest.mark.parametrize(
    "calculate", [lambda mask: mask.clone(), lambda mask: mask[:, :, :4], lambda mask: mask + 1, lambda mask: ~mask]
)
def test_a_model_that_calculates_with_its_mask_keeps_its_own_attention(calculate: Any) -> None:
    model = build(CONFIGS["llama"])
    layer = model.model.layers[0]
    forward = layer.forward

    def calculating(*args: Any, attention_mask: Any = None, **options: Any) -> Any:
        if attention_mask is not None:
            calculate(attention_mask)
        return forward(*args, attention_mask=attention_mask, **options)

    layer.forward = calculating
    assert not measure_attention(model, CPU)
    assert can_attend_by_sequence(model, CPU)
