"""An answer's text ends before its stop, whatever the stop is made of."""

from __future__ import annotations

import pytest
import torch
from tiny_tokenizer import tiny_tokenizer
from transformers import PreTrainedTokenizerFast

from twinkle.engines import SamplingParams
from twinkle_engines.samplers.answer import Answer
from twinkle_engines.samplers.answers import to_rollouts

END = 0


def special_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizer().backend_tokenizer, eos_token="<end>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    return tokenizer


@pytest.mark.parametrize(
    ("written", "stop", "text", "shown"),
    [
        ("<think>ab</think>\n", "</think>\n", "ab", "<think>ab"),
        ("<think>ab</think>", "</think>", "ab", "<think>ab"),
        ("<think>ab</think>cd\n\n", "d\n", "abc", "<think>ab</think>c"),
        ("<think>ab</think>cd", "think>c", "ab", "<think>ab</"),
        ("ab</think>\u00e9\u00e9", "\u00e9\u00e9", "ab", "ab</think>"),
        ("abab", "ba", "a", "a"),
        ("<think>ab", "x", "ab", "<think>ab"),
    ],
)
def test_a_text_ends_before_its_stop(written: str, stop: str, text: str, shown: str) -> None:
    tokenizer = special_tokenizer()
    ids = tokenizer.encode(written, add_special_tokens=False)
    answer = Answer([5], ids, torch.zeros(len(ids)), "stop")
    for skips, right in ((True, text), (False, shown)):
        params = SamplingParams(stop=(stop,), skip_special_tokens=skips)
        assert to_rollouts([answer], params, tokenizer, [0], [END]).completions == [right]


def test_the_end_is_in_no_text() -> None:
    tokenizer = special_tokenizer()
    ids = [*tokenizer.encode("<think>ab", add_special_tokens=False), END]
    answer = Answer([5], ids, torch.zeros(len(ids)), "stop")
    for skips, right in ((True, "ab"), (False, "<think>ab")):
        made = to_rollouts([answer], SamplingParams(skip_special_tokens=skips), tokenizer, [0], [END])
        assert made.completions == [right]
