"""A token is drawn in proportion to its probability, with the log-probability that the logits give it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import Build
from torch.testing import assert_close
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from twinkle.engines import SamplingParams
from twinkle_engines.samplers.token_drawing import KnownLargest, TokenDrawing, first_largest

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


@given(st.integers(1, 4), st.integers(1, 2000), st.integers(0, 99))
def test_the_first_largest_is_where_argmax_finds_it(rows: int, size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-3, 4, (rows, size), generator=generator).float()  # with ties
    for scale in (1.0, torch.inf):  # 0 * inf is NaN
        assert first_largest(scores * scale).tolist() == (scores * scale).argmax(-1).tolist()


class Third(LogitsProcessor):
    """Says that the third token is the largest."""

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        return KnownLargest.of(scores, torch.full((len(scores),), 3))  # type: ignore[return-value]  # a Tensor of that dtype


def test_generation_takes_the_token_that_is_known_and_does_not_look_for_it() -> None:
    config = GenerationConfig(do_sample=False, max_new_tokens=4, eos_token_id=None, pad_token_id=0)
    ids = torch.tensor([[5, 6, 7]])
    written = Build("qwen3")().generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        generation_config=config,
        logits_processor=LogitsProcessorList([Third()]),
    )
    assert written.tolist() == [[5, 6, 7, 3, 3, 3, 3]]


@pytest.mark.parametrize("other", [lambda one: one * 2, lambda one: torch.cat([one, one]), lambda one: one.add_(0.0)])
def test_scores_that_others_may_have_changed_are_looked_through_again(other: Any) -> None:
    known: Any = KnownLargest.of(LOGITS.clone(), torch.tensor([4, 4]))
    assert known.argmax(-1).tolist() == torch.argmax(known, dim=-1).tolist() == [4, 4]
    assert type(other(known)) is torch.Tensor and other(known).equal(other(LOGITS.clone()))
    assert torch.argmax(known, dim=-1).tolist() == [1, 0]


def test_what_is_known_are_the_largest_over_the_vocabulary_alone() -> None:
    known: Any = KnownLargest.of(LOGITS.clone(), torch.tensor([4, 4]))
    assert torch.argmax(known, dim=0).tolist() == LOGITS.argmax(0).tolist()
