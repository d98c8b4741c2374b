"""A token is drawn in proportion to its probability, with the log-probability that the logits give it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from twinkle.engines import SamplingParams
from twinkle_engines.samplers.generation import TokenDrawing

LOGITS = torch.tensor([[0.0, 2.0, -torch.inf, 1.0, -torch.inf], [3.0, -200.0, 0.5, 0.5, -torch.inf]])


def drawn(draws: list[float], **options: Any) -> tuple[list[int], torch.Tensor]:
    drawing = TokenDrawing(SamplingParams(**options), torch.tensor(draws, dtype=torch.float64)[:, None])
    scores: Any = LOGITS.clone()
    tokens = drawing(torch.zeros(2, 1, dtype=torch.int64), scores).argmax(-1)  # type: ignore[arg-type]  # a Tensor of that dtype
    return tokens.tolist(), drawing.logprobs[0]


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 3.0])
def test_the_log_probability_is_that_of_the_logits(temperature: float) -> None:
    right = (LOGITS / (temperature or 1.0)).log_softmax(-1)
    for options in ({}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.1}):
        tokens, logprobs = drawn([0.3, 0.3], temperature=temperature, **options)
        assert_close(logprobs, right.gather(-1, torch.tensor(tokens)[:, None])[:, 0], rtol=0, atol=1e-6)
        assert temperature or tokens == [1, 0]


def test_a_draw_takes_the_token_at_which_the_probabilities_pass_it() -> None:
    upto = LOGITS.double().softmax(-1).cumsum(-1)
    for share in range(100):
        tokens, _ = drawn([share / 100] * 2)
        assert tokens == [int((row <= share / 100).sum()) for row in upto]


@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"temperature": 0.1}])
def test_the_largest_draw_takes_no_token_without_a_probability(options: dict[str, Any]) -> None:
    tokens, logprobs = drawn([1 - 2**-53] * 2, **options)
    assert tokens == [3, 3] and bool(logprobs.isfinite().all())
