"""Answers: sequences that a model has written to prompts, as rollouts with their texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from twinkle_engines.batches.rollouts import Rollouts

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from transformers import PreTrainedTokenizerBase

    from twinkle_engines.samplers.params import SamplingParams


class Answer(NamedTuple):
    """One sequence: the prompt's ids, the answer's, their log-probabilities, and why it ended ("stop" or "length")."""

    prompt: list[int]
    ids: list[int]
    logprobs: torch.Tensor
    finish: str


def to_rollouts(
    answers: Sequence[Answer],
    params: SamplingParams,
    tokenizer: PreTrainedTokenizerBase | None,
    versions: Sequence[torch.Tensor | int],
    ends: Collection[int],
) -> Rollouts:
    """Rollouts of the answers, a row each, with the versions of each or of its tokens; a text ends before its stop."""
    count = len(answers)
    return Rollouts(
        [torch.tensor([*one.prompt, *one.ids]) for one in answers],
        [torch.tensor([0] * len(one.prompt) + [1] * len(one.ids)) for one in answers],
        logprobs=[torch.cat([torch.zeros(len(one.prompt)), one.logprobs]) for one in answers],
        temperatures=[params.temperature or 1.0] * count,
        versions=versions,
        completions=None if tokenizer is None else [_text(one, params, tokenizer, ends) for one in answers],
        finish=[one.finish for one in answers],
        truncated_sampling=[params.is_truncated] * count,
    )


def _text(one: Answer, params: SamplingParams, tokenizer: PreTrainedTokenizerBase, ends: Collection[int]) -> str:
    ids = one.ids[:-1] if one.finish == "stop" and one.ids[-1] in ends else one.ids
    special = set(tokenizer.all_special_ids) if params.skip_special_tokens else set()
    whole = decoded(ids, tokenizer)
    start = min([whole.find(stop) for stop in params.stop if stop in whole], default=None)
    if special.isdisjoint(ids):
        return whole[:start]
    if start is None:
        return decoded(ids, tokenizer, skips_special=True)
    # a stop may have special tokens, which are not in the text: the tokens whose text ends at or before it
    length = max(n for n in range(len(ids)) if len(decoded(ids[:n], tokenizer)) <= start)
    begun = "" if ids[length] in special else whole[len(decoded(ids[:length], tokenizer)) : start]
    return decoded(ids[:length], tokenizer, skips_special=True) + begun


def decoded(ids: list[int], tokenizer: PreTrainedTokenizerBase, *, skips_special: bool = False) -> str:
    """The text of tokens as they were written: spaces before marks stay, so that more tokens have a longer text."""
    return str(tokenizer.decode(ids, skip_special_tokens=skips_special, clean_up_tokenization_spaces=False))
