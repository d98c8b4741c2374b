from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.recurrent_gemma.configuration_recurrent_gemma import RecurrentGemmaConfig

import twinkle
from twinkle.engines import SamplingParams, TransformersSampler

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "lru_width": 32,
    "attention_window_size": 8,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "initializer_range": 0.3,
}


def build() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(RecurrentGemmaConfig(**SIZES))


def test_a_prompt_of_one_token_does_not_go_on_from_the_prompt_before() -> None:
    params = SamplingParams(temperature=0, max_new_tokens=6)
    plain = build().eval()
    with twinkle.session("local"):
        sampler = TransformersSampler(build)
        for prompt in ([31], [5, 6, 7, 8, 9], [31], [40]):
            written = sampler.sample([prompt], params)
            assert written.logprobs is not None
            ids, found = written.ids[0], written.logprobs[0]
            with torch.no_grad():
                right = plain(input_ids=ids[None], use_cache=False).logits[0].log_softmax(-1)
            expected = right[:-1].gather(1, ids[1:, None])[:, 0]
            assert torch.allclose(found[len(prompt) :], expected[len(prompt) - 1 :], atol=1e-4), prompt
