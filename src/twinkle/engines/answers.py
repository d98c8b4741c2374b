"""Answers: sequences that a model writes to prompts, by Transformers' generation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from twinkle.engines.rollouts import Rollouts
from twinkle.engines.token_drawing import StopTexts, TokenDrawing, draws_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from transformers import PreTrainedTokenizerBase

    from twinkle.engines.sampling_params import SamplingParams
    from twinkle.engines.sequence_seed import Job


class Answer(NamedTuple):
    """One sequence: the prompt's ids, the answer's, their log-probabilities, and why it ended."""

    prompt: list[int]
    ids: list[int]
    logprobs: torch.Tensor
    finish: str


@torch.no_grad()
def write(
    model: Any,
    tokenizer: PreTrainedTokenizerBase | None,
    ends: Collection[int],
    jobs: Sequence[Job],
    params: SamplingParams,
) -> list[Answer]:
    """Write an answer to each job.

    Args:
        model: The model; its generation config says nothing but which tokens end a sequence.
        tokenizer: Its tokenizer, for `params.stop`.
        ends: The tokens that end a sequence.
        jobs: The answers to write.
        params: How to draw.
    """
    prompts = [job.ids for job in jobs]
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(ids)) + ids for ids in prompts], device=model.device)
    attended = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts], device=model.device)
    draws = torch.stack([draws_of(*job, params.max_new_tokens) for job in jobs])
    drawing = TokenDrawing(params, draws.to(model.device))
    stopping = StoppingCriteriaList()
    if params.stop and tokenizer is not None:
        stopping.append(StopTexts(params.stop, tokenizer, width))
    config = GenerationConfig(
        do_sample=False, max_new_tokens=params.max_new_tokens, eos_token_id=sorted(ends) or None, pad_token_id=0
    )
    written = model.generate(
        input_ids=ids,
        attention_mask=attended,
        generation_config=config,
        logits_processor=LogitsProcessorList([drawing]),
        stopping_criteria=stopping,
    )[:, width:].tolist()
    logprobs = torch.stack(drawing.logprobs, dim=1).cpu()
    return [
        _cut(job.ids, row, logprob, ends, params, tokenizer)
        for job, row, logprob in zip(jobs, written, logprobs, strict=True)
    ]


def _cut(
    prompt: list[int],
    ids: list[int],
    logprobs: torch.Tensor,
    ends: Collection[int],
    params: SamplingParams,
    tokenizer: PreTrainedTokenizerBase | None,
) -> Answer:
    """The answer up to its end: what follows is padding, while other sequences went on."""
    length = next((i for i, token in enumerate(ids, 1) if token in ends), None)
    if params.stop and tokenizer is not None:
        stopped = _length_to_stop(ids[:length], params.stop, tokenizer)
        length = length if stopped is None else stopped
    finish = "length" if length is None else "stop"
    return Answer(prompt, ids[:length], logprobs[: len(ids) if length is None else length].clone(), finish)


def _length_to_stop(ids: list[int], stop: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Tokens up to the first with which a stop is complete; None without one. By bisection, as texts only grow."""

    def has_stop(length: int) -> bool:
        text = tokenizer.decode(ids[:length])
        return any(one in text for one in stop)

    if not has_stop(len(ids)):
        return None
    low, high = 0, len(ids)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if has_stop(middle) else (middle, high)
    return high


def to_rollouts(
    answers: Sequence[Answer],
    params: SamplingParams,
    tokenizer: PreTrainedTokenizerBase | None,
    versions: Sequence[torch.Tensor | int],
) -> Rollouts:
    """Rollouts of the answers, a row each, with the versions of each or of its tokens; a text ends before its stop."""
    ids = [torch.tensor([*one.prompt, *one.ids]) for one in answers]
    masks = [torch.tensor([0] * len(one.prompt) + [1] * len(one.ids)) for one in answers]
    logprobs = [torch.cat([torch.zeros(len(one.prompt)), one.logprobs]) for one in answers]
    texts = None if tokenizer is None else [_text(one.ids, params.stop, tokenizer) for one in answers]
    finish = [one.finish for one in answers]
    return Rollouts(ids, masks, logprobs, versions=versions, completions=texts, finish=finish)


def _text(ids: list[int], stop: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> str:
    text = str(tokenizer.decode(ids, skip_special_tokens=True))
    return text[: min([text.find(one) for one in stop if one in text], default=len(text))]
