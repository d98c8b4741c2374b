"""Answers of a model with a vocabulary of 60,000: `TransformersSampler`, and Transformers' `generate()`.

Both have the same random weights, the same prompts of several lengths, and one thread. The sampler returns the
log-probability of each token, which `generate()` is not asked for.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from rows import Row, cpu_seconds, main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VOCABULARY = 60_000
ROWS_AT_ONCE = 16
TOKENS = 32


def build() -> Any:
    """A tiny model with a large head."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, tie_word_embeddings=True, eos_token_id=None,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config).eval()


def prompts() -> list[list[int]]:
    """Token ids, of 8 to 31 tokens."""
    return [[(37 * i + 11 * j) % VOCABULARY for j in range(8 + (5 * i) % 24)] for i in range(ROWS_AT_ONCE)]


@contextmanager
def sampler(temperature: float) -> Iterator[Callable[[], float]]:
    """Our side: CPU seconds of a call."""
    from twinkle.engines import SamplingParams, TransformersSampler

    ours: Any = TransformersSampler(build)
    params = SamplingParams(temperature=temperature, max_new_tokens=TOKENS)
    yield lambda: cpu_seconds(lambda: ours.sample(prompts(), params))


@contextmanager
def generate(do_sample: bool) -> Iterator[Callable[[], float]]:
    """Transformers' side: CPU seconds of a call with the same prompts, padded on the left."""
    import torch

    model, rows = build(), prompts()
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    options: dict[str, Any] = {"max_new_tokens": TOKENS, "pad_token_id": 0}
    options |= {"do_sample": True, "top_k": 0} if do_sample else {"do_sample": False}
    yield lambda: cpu_seconds(lambda: model.generate(input_ids=ids, attention_mask=mask, **options))


SIDES = {
    "sampled": partial(sampler, 1.0),
    "greedy": partial(sampler, 0.0),
    "generate, sampled": partial(generate, True),
    "generate, greedy": partial(generate, False),
}
ROWS = [
    Row(
        "answers of a model with 60,000 tokens, sampled", "transformers", "sampled", "generate, sampled", "CPU s",
        at_most=0.5, by_hand="generate()",
    ),
    Row(
        "answers of a model with 60,000 tokens, greedy", "transformers", "greedy", "generate, greedy", "CPU s",
        at_most=1.0, by_hand="generate()",
    ),
]  # fmt: skip

if __name__ == "__main__":
    main(SIDES, ROWS)
