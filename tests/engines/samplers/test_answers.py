"""An answer's text ends before its stop, whatever the stop is made of."""

from __future__ import annotations

import pytest
import torch
from tiny_models import SIZES
from tiny_tokenizer import tiny_tokenizer
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast, Qwen2Config

from twinkle.engines import SamplingParams, TransformersSampler
from twinkle_engines.samplers.sampler import Answer, to_rollouts

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


PIECES = [".", "a ", " b", "c", "?", " ?", "d", "<end>", "e", " 'm"]


@pytest.mark.parametrize("stop", ["a ", "a", " b", "b .", " ?", "?", "c.", "a .", "a c", " 'm", "e "])
def test_an_answer_ends_where_the_written_text_has_the_stop(stop: str) -> None:
    """Some tokenizers take spaces before marks out of a text, so that a stop would go when a mark follows it."""
    words = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(PIECES)}, unk_token="."))
    words.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<end>", clean_up_tokenization_spaces=True, unk_token="."
    )
    config = Qwen2Config(**{**SIZES, "vocab_size": len(PIECES)}, eos_token_id=7)
    made = TransformersSampler(config, tokenizer=tokenizer).sample(
        [[3], [6, 6]], SamplingParams(n=12, max_new_tokens=12, stop=(stop,), seed=1, skip_special_tokens=False)
    )
    assert made.mask is not None and made.finish is not None and made.completions is not None
    for ids, mask, finish, text in zip(made.ids, made.mask, made.finish, made.completions, strict=True):
        written = [PIECES[i] for i in ids[mask.bool()].tolist()]
        whole = "".join(written)
        assert (stop in whole) + (written[-1] == "<end>") == (finish == "stop")
        assert stop not in "".join(written[:-1]) and "<end>" not in written[:-1]
        assert finish == "stop" or len(written) == 12
        assert text == whole.removesuffix("<end>").partition(stop)[0]
