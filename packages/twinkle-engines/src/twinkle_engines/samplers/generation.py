"""Generation: answers of a model by Transformers' `generate`, each token drawn with numbers of its sequence's own.

Invariant: an answer depends on its seed, its prompt and its number alone, not on the prompts beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    StoppingCriteria,
    StoppingCriteriaList,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from twinkle_engines.samplers.sampler import Answer, decoded, draws_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from transformers import PreTrainedTokenizerBase

    from twinkle_engines.models.passes import ModelLimits
    from twinkle_engines.samplers.sampler import Job, SamplingParams


@torch.no_grad()
def write(
    model: Any,
    jobs: Sequence[Job],
    params: SamplingParams,
    *,
    size: int | None,
    ends: Collection[int],
    tokenizer: PreTrainedTokenizerBase | None,
    limits: ModelLimits,
) -> list[Answer]:
    """Write an answer to each job.

    Raises:
        ValueError: A prompt has ids that the model does not know, or may cross a border of rotary frequencies; or the
            logits are no distribution.
    """
    for job in jobs:
        limits.check_ids(job.ids, "a prompt has the token id")
    found: list[Answer] = []
    for start in range(0, len(jobs), size or max(len(jobs), 1)):
        some = jobs[start : start + (size or len(jobs))]
        limits.check_lengths([len(job.ids) + more for job in some for more in (1, params.max_new_tokens)])
        found += _write(model, some, params, ends, tokenizer)
    return found


def _write(
    model: Any,
    jobs: Sequence[Job],
    params: SamplingParams,
    ends: Collection[int],
    tokenizer: PreTrainedTokenizerBase | None,
) -> list[Answer]:
    """Answers that are written at once; `generate` gives each row the positions of its own tokens."""
    room = params.max_new_tokens
    width = max(len(job.ids) for job in jobs)
    ids = torch.tensor([[0] * (width - len(job.ids)) + job.ids for job in jobs], device=model.device)
    attended = torch.tensor([[0] * (width - len(job.ids)) + [1] * len(job.ids) for job in jobs], device=model.device)
    drawing = TokenDrawing(params, torch.stack([draws_of(job, room) for job in jobs]).to(model.device))
    stopping = StopTexts(params.stop, tokenizer, width, len(jobs)) if params.stop and tokenizer is not None else None
    config = GenerationConfig(
        do_sample=False, max_new_tokens=room, eos_token_id=sorted(ends) or None, pad_token_id=0, use_cache=True
    )
    written = model.generate(
        input_ids=ids,
        attention_mask=attended,
        generation_config=config,
        logits_processor=LogitsProcessorList([drawing]),
        stopping_criteria=StoppingCriteriaList([] if stopping is None else [stopping]),
    )[:, width:].tolist()
    logprobs = torch.stack(drawing.logprobs, dim=1).cpu()
    answers = []
    for i, (job, row) in enumerate(zip(jobs, written, strict=True)):
        length = next((n for n, token in enumerate(row, 1) if token in ends), None)
        if stopping is not None and stopping.lengths[i] is not None:
            length = min(stopping.lengths[i] or 0, length or len(row))
        finish = "length" if length is None else "stop"
        answers.append(Answer(job.ids, row[:length], logprobs[i, : length or len(row)].clone(), finish))
    return answers


class TokenDrawing(LogitsProcessor):
    """Makes the drawn token the likeliest one, and keeps its log-probability at the temperature.

    Tokens are left out in vLLM's order: by min_p, by top_k, then by top_p.
    """

    def __init__(self, params: SamplingParams, draws: torch.Tensor) -> None:
        self._greedy = params.temperature == 0
        self._temperature = params.temperature or 1.0
        self._draws = draws
        self._warpers = LogitsProcessorList()
        if params.min_p:
            self._warpers.append(MinPLogitsWarper(params.min_p))
        if params.top_k:
            self._warpers.append(TopKLogitsWarper(params.top_k))
        if params.top_p < 1:
            self._warpers.append(TopPLogitsWarper(params.top_p))
        self.logprobs: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Scores (sequences, vocabulary) whose largest one of each row is its token's.

        Raises:
            ValueError: A row's logits are no distribution: NaN, inf, or none above -inf.
        """
        logits = (scores if scores.dtype == torch.float64 else scores.float()) / self._temperature
        logprobs = logits.log_softmax(dim=-1)
        if not bool(logprobs.logsumexp(dim=-1).isfinite().all()):
            raise ValueError(
                f"the logits at token {len(self.logprobs)} of an answer are not finite, at the temperature "
                f"{self._temperature}: no token can be drawn; look at the weights, the last sync and the dtype"
            )
        if self._greedy:
            tokens = scores.argmax(dim=-1, keepdim=True)
        else:
            upto = self._warpers(input_ids, logits).softmax(dim=-1).double().cumsum(dim=-1)
            # The last sum is next to 1 by rounding. What is drawn lies below it: no token without a probability is.
            draw = self._draws[:, len(self.logprobs), None] * upto[:, -1:] * (1 - 2**-52)
            tokens = torch.searchsorted(upto, draw.contiguous(), right=True)
        self.logprobs.append(logprobs.gather(-1, tokens)[:, 0])
        return scores.scatter(-1, tokens, torch.inf)  # type: ignore[return-value]  # a Tensor of that dtype


class StopTexts(StoppingCriteria):
    """Ends a sequence whose answer contains one of some texts.

    Attributes:
        lengths: Tokens of each answer when it first contained one; None before.
    """

    def __init__(self, stop: Sequence[str], tokenizer: PreTrainedTokenizerBase, start: int, count: int) -> None:
        self._stop, self._tokenizer, self._start = stop, tokenizer, start
        # A character is up to four tokens of bytes, and special tokens may be none.
        self._window = 4 * max(map(len, stop)) + 8
        self.lengths: list[int | None] = [None] * count

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **kwargs: object) -> torch.BoolTensor:
        """Whether each sequence has ended."""
        answers = input_ids[:, self._start :]
        for i, answer in enumerate(answers[:, -self._window :].tolist()):
            if self.lengths[i] is None and any(stop in decoded(answer, self._tokenizer) for stop in self._stop):
                self.lengths[i] = answers.shape[1]
        ended = [length is not None for length in self.lengths]
        return torch.tensor(ended, device=input_ids.device)  # type: ignore[return-value]  # a Tensor of that dtype
