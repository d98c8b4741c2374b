"""Answers: sequences that a model writes to prompts, by Transformers' generation."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from twinkle_engines.batches.rollouts import Rollouts
from twinkle_engines.parallel.tensor_parallel import plain_model
from twinkle_engines.samplers.answer import Answer
from twinkle_engines.samplers.token_drawing import StopTexts, TokenDrawing, decoded, draws_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from transformers import PreTrainedTokenizerBase

    from twinkle_engines.models.kept_state import KeptState
    from twinkle_engines.models.neighbours import Neighbours
    from twinkle_engines.models.token_limits import TokenLimits
    from twinkle_engines.samplers.rereading import Rereading
    from twinkle_engines.samplers.sampling_params import SamplingParams
    from twinkle_engines.samplers.sequence_seed import Job


class Writer(NamedTuple):
    """A model that writes answers, with its limits.

    Attributes:
        model: The model; its generation config says nothing but which tokens end a sequence.
        tokenizer: Its tokenizer, for `params.stop`.
        ends: The tokens that end a sequence.
        limits: Which ids the model knows, and how long a sequence may be.
        neighbours: Which sequences may be computed at once.
        kept: What the model's modules keep from one pass to the next.
        rereading: What compares answers with what they are in training.
        deadline: What ends the generation with an error; None waits for ever.
    """

    model: Any
    tokenizer: PreTrainedTokenizerBase | None
    ends: Collection[int]
    limits: TokenLimits
    neighbours: Neighbours
    kept: KeptState
    rereading: Rereading
    deadline: StoppingCriteria | None = None


@torch.no_grad()
def write(writer: Writer, jobs: Sequence[Job], params: SamplingParams, size: int | None) -> list[Answer]:
    """Write an answer to each job.

    Args:
        writer: What writes.
        jobs: The answers to write.
        params: How to draw.
        size: Sequences written at once, at most; None for all that may be.

    Raises:
        TimeoutError: The deadline is over.
        ValueError: A prompt has ids that the model does not know, or leaves no room for an answer; the logits are no
            distribution; or the model writes with other numbers than it reads.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for i, job in enumerate(jobs):
        groups.setdefault(_group(writer, len(job.ids), params.max_new_tokens), []).append(i)
    found: dict[int, Answer] = {}
    for (_, room), group in groups.items():
        for start in range(0, len(group), size or len(group)):
            chosen = group[start : start + (size or len(group))]
            found |= zip(chosen, _reread(writer, [jobs[i] for i in chosen], params, room), strict=True)
    _report_border(writer, found.values(), params.max_new_tokens)
    return [found[i] for i in range(len(jobs))]


def _group(writer: Writer, length: int, most: int) -> tuple[int, int]:
    """The key that sequences share that are written at once; the last number is the tokens that they may get.

    At the last position a sequence ends, and no other one goes on with it; so it does at a border of the model.
    """
    positions = writer.limits.positions
    room = most if positions is None else min(most, positions - length)
    side = writer.neighbours.room(length)
    return writer.neighbours.group(length), room if side is None else min(room, side)


def _report_border(writer: Writer, answers: Collection[Answer], most: int) -> None:
    """Warn of answers that a border of the model has ended."""
    border = writer.neighbours.border
    ended = [one for one in answers if one.finish == "length" and len(one.ids) < most]
    ended = [one for one in ended if len(one.prompt) + len(one.ids) == border]
    if ended:
        warnings.warn(
            f"{len(ended)} of {len(answers)} answers ended at {border} tokens: there this model's positions change, "
            "and what was written before would have other log-probabilities in training than it was drawn with; use "
            f"max_new_tokens that stay within {border} tokens, or prompts of more",
            stacklevel=2,
        )


@torch.no_grad()
def check_finite(model: Any, ids: list[int]) -> None:
    """Raise for a model whose logits are no numbers.

    Raises:
        ValueError: They are NaN or inf, or the model's own code fails.
    """
    try:
        logits = model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a model raises
        raise ValueError(
            f"{type(plain_model(model)).__name__} does not compute a prompt of {len(ids)} tokens: "
            f"{type(error).__name__}: {error}; use another model, or a config that fits its layers"
        ) from error
    if not bool(logits.float().logsumexp(-1).isfinite().all()):
        raise ValueError("the model's logits are not finite: look at the weights, the last sync and the dtype")


def check_prompts(limits: TokenLimits, prompts: Sequence[list[int]]) -> None:
    """Raise for prompts that a model cannot continue.

    Raises:
        ValueError: One has ids that the model does not know, or is as long as a sequence may be.
    """
    for ids in prompts:
        limits.check(ids, "a prompt")
        if limits.positions is not None and len(ids) >= limits.positions:
            raise ValueError(
                f"a prompt has {len(ids)} tokens, but the model has positions for {limits.positions} with the answer: "
                f"use at most {limits.positions - 1} tokens"
            )


def _reread(writer: Writer, jobs: Sequence[Job], params: SamplingParams, longest: int) -> list[Answer]:
    """Answers of at most `longest` tokens, as they are in training: written again where they were not."""
    while True:
        made = _write(writer, jobs, params, longest)
        if writer.rereading.holds(made, params.temperature or 1.0):
            return made


def _write(writer: Writer, jobs: Sequence[Job], params: SamplingParams, longest: int) -> list[Answer]:
    """Answers of at most `longest` tokens."""
    model, tokenizer, ends, deadline = writer.model, writer.tokenizer, writer.ends, writer.deadline
    prompts = [job.ids for job in jobs]
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(ids)) + ids for ids in prompts], device=model.device)
    attended = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts], device=model.device)
    draws = torch.stack([draws_of(*job, longest) for job in jobs])
    drawing = TokenDrawing(params, draws.to(model.device))
    stopping = StoppingCriteriaList([] if deadline is None else [deadline])
    if params.stop and tokenizer is not None:
        stopping.append(StopTexts(params.stop, tokenizer, width))
    config = GenerationConfig(
        do_sample=False,
        max_new_tokens=longest,
        eos_token_id=sorted(ends) or None,
        pad_token_id=0,
        use_cache=writer.rereading.cached,
    )
    writer.kept.forget()
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
        text = decoded(ids[:length], tokenizer)
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
    ends: Collection[int],
) -> Rollouts:
    """Rollouts of the answers, a row each, with the versions of each or of its tokens; a text ends before its stop."""
    ids = [torch.tensor([*one.prompt, *one.ids]) for one in answers]
    masks = [torch.tensor([0] * len(one.prompt) + [1] * len(one.ids)) for one in answers]
    logprobs = [torch.cat([torch.zeros(len(one.prompt)), one.logprobs]) for one in answers]
    texts = None if tokenizer is None else [_text(one, params, tokenizer, ends) for one in answers]
    finish = [one.finish for one in answers]
    return Rollouts(
        ids,
        masks,
        logprobs,
        temperatures=[params.temperature or 1.0] * len(answers),
        versions=versions,
        completions=texts,
        finish=finish,
        truncated_sampling=[params.is_truncated] * len(answers),
    )


def _text(one: Answer, params: SamplingParams, tokenizer: PreTrainedTokenizerBase, ends: Collection[int]) -> str:
    ids = one.ids[:-1] if one.finish == "stop" and one.ids[-1] in ends else one.ids
    skips = params.skip_special_tokens and not set(tokenizer.all_special_ids).isdisjoint(ids)
    whole = decoded(ids, tokenizer)
    start = min([whole.find(stop) for stop in params.stop if stop in whole], default=None)
    if not skips:
        return whole[:start]
    if start is None:
        return decoded(ids, tokenizer, skips_special=True)
    length = _tokens_before(start, ids, tokenizer)  # a stop may have special tokens, which are not in the text
    begun = "" if ids[length] in tokenizer.all_special_ids else whole[len(decoded(ids[:length], tokenizer)) : start]
    return decoded(ids[:length], tokenizer, skips_special=True) + begun


def _tokens_before(start: int, ids: list[int], tokenizer: PreTrainedTokenizerBase) -> int:
    """The most tokens whose text ends at or before a place in the text of all, which lies before its end."""
    return max(n for n in range(len(ids)) if len(decoded(ids[:n], tokenizer)) <= start)
