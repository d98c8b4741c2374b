"""Draws each sequence's next token with numbers of its own, inside Transformers' generation."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    StoppingCriteria,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from twinkle_engines.samplers.sequence_seed import sequence_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from transformers import PreTrainedTokenizerBase

    from twinkle_engines.samplers.sampling_params import SamplingParams


def draws_of(ids: Sequence[int], number: int, seed: int, count: int) -> torch.Tensor:
    """Numbers in [0, 1) of one sequence: a function of the seed, the prompt and the answer's number alone."""
    generator = torch.Generator().manual_seed(sequence_seed(ids, number, seed))
    return torch.rand(count, dtype=torch.float64, generator=generator)


class KnownLargest(torch.Tensor):
    """Scores (sequences, vocabulary) whose largest ones are known: `argmax` over the vocabulary does not look for them.

    Any other function gets the scores as a plain tensor, and as it may change them, the largest are unknown after it.

    Attributes:
        plain: The scores.
        largest: The place of each row's first largest score (sequences,); None if they are unknown.
    """

    plain: torch.Tensor
    largest: torch.Tensor | None

    @classmethod
    def of(cls, scores: torch.Tensor, largest: torch.Tensor) -> KnownLargest:
        """The scores, with the places of the largest."""
        known = scores.as_subclass(cls)
        known.plain, known.largest = scores, largest
        return known

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function of torch, by torch's protocol."""
        options = dict(kwargs or {})
        if func in _ARGMAX and (args[1:], options) in _OVER_VOCABULARY and args[0].largest is not None:
            return args[0].largest
        return func(*_plain(args), **_plain(options))


def _plain(value: Any) -> Any:
    """Arguments with plain tensors."""
    if isinstance(value, KnownLargest):
        value.largest = None
        return value.plain
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value


_ARGMAX = (torch.argmax, torch.Tensor.argmax)
_OVER_VOCABULARY: Sequence[tuple[tuple[int, ...], dict[str, int]]] = (((-1,), {}), ((), {"dim": -1}))
_BLOCK = 256  # scores


def first_largest(scores: torch.Tensor) -> torch.Tensor:
    """The place of the first largest score of each row (sequences,), as `argmax`; NaN counts as the largest.

    On a CPU `argmax` takes ten times as long as `amax`, so it looks through one block of each row alone.
    """
    size = scores.shape[-1]
    if size < 4 * _BLOCK:
        return scores.argmax(dim=-1)
    whole = size // _BLOCK
    blocks = torch.unflatten(scores[:, : whole * _BLOCK], -1, (whole, _BLOCK)).amax(dim=-1)
    last = scores[:, -_BLOCK:].amax(dim=-1, keepdim=True)  # overlaps the one before, which goes first
    start = (torch.cat([blocks, last], dim=-1).argmax(dim=-1, keepdim=True) * _BLOCK).clamp(max=size - _BLOCK)
    inside = scores.gather(-1, start + torch.arange(_BLOCK, device=scores.device))
    return start[:, 0] + inside.argmax(dim=-1)


class TokenDrawing(LogitsProcessor):
    """Makes the drawn token the likeliest one, and keeps its log-probability at the temperature.

    Tokens are left out in vLLM's order: by min_p, by top_k, then by top_p.

    Args:
        params: How to draw.
        draws: Numbers in [0, 1) for each sequence and step (sequences, steps).
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
        self._probabilities: torch.Tensor | None = None  # memory of the last step

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """The scores (sequences, vocabulary) themselves, changed so that each row's largest is its token's.

        A greedy token has the largest one already.

        Raises:
            ValueError: A row's logits are no distribution: NaN, inf, or none above -inf.
        """
        wide = scores if scores.dtype == torch.float64 else scores.float()
        logits = wide if self._temperature == 1.0 else wide / self._temperature
        probabilities = self._softmax(logits)
        if self._greedy:
            largest = first_largest(scores)
            chosen = probabilities.gather(-1, largest[:, None])[:, 0]
            self._check(scores, chosen)
            self.logprobs.append(chosen.log())
            return KnownLargest.of(scores, largest)  # type: ignore[return-value]  # a Tensor of that dtype
        if self._warpers:
            self._check(scores, probabilities.sum(dim=-1))
            tokens = self._draw(scores, self._warpers(input_ids, logits).softmax(dim=-1))
        else:
            tokens = self._draw(scores, probabilities)
        self.logprobs.append(probabilities.gather(-1, tokens)[:, 0].log())
        return KnownLargest.of(scores.scatter_(-1, tokens, torch.inf), tokens[:, 0])  # type: ignore[return-value]  # as above

    def _softmax(self, logits: torch.Tensor) -> torch.Tensor:
        """The probabilities (sequences, vocabulary), in the memory of the last step: new memory costs half of it."""
        last = self._probabilities
        if last is None or last.shape != logits.shape or last.dtype != logits.dtype:
            last = self._probabilities = torch.empty_like(logits)
        return torch.softmax(logits, dim=-1, out=last)

    def _draw(self, scores: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
        """The first token of each row (sequences, 1) at which the summed probabilities pass the draw."""
        upto = probabilities.double().cumsum(dim=-1)  # in two steps, as torch takes ten times as long in one
        self._check(scores, upto[:, -1])
        # The last sum is next to 1 by rounding. What is drawn lies below it, so that no token without a probability is.
        draw = self._draws[:, len(self.logprobs), None] * upto[:, -1:] * (1 - 2**-52)
        return torch.searchsorted(upto, draw.contiguous(), right=True)

    def _check(self, scores: torch.Tensor, sums: torch.Tensor) -> None:
        if not bool(sums.isfinite().all()):
            self._refuse(scores, sums)

    def _refuse(self, scores: torch.Tensor, total: torch.Tensor) -> None:
        wrong = int((~total.isfinite()).sum())
        kinds = {"NaN": scores.isnan(), "inf": scores == torch.inf, "-inf": scores == -torch.inf}
        found = ", ".join(f"{int(places.sum())} times {kind}" for kind, places in kinds.items() if bool(places.any()))
        what = f"have {found}" if found else f"are not finite when divided by the temperature {self._temperature}"
        raise ValueError(
            f"the logits of {wrong} of {len(scores)} sequences {what} at token {len(self.logprobs)} of the answer: no "
            "token can be drawn; look at the weights, the last sync and the dtype of the sampler"
        )


def decoded(ids: list[int], tokenizer: PreTrainedTokenizerBase, *, skips_special: bool = False) -> str:
    """The text of tokens as they were written: spaces before marks stay, so that more tokens have a longer text.

    Args:
        ids: The tokens.
        tokenizer: Turns them to texts.
        skips_special: Whether special tokens are left out.
    """
    return str(tokenizer.decode(ids, skip_special_tokens=skips_special, clean_up_tokenization_spaces=False))


class StopTexts(StoppingCriteria):
    """Ends a sequence whose answer contains one of some texts.

    Args:
        stop: The texts.
        tokenizer: Turns tokens to texts.
        start: Tokens of the prompt, padding included.
    """

    def __init__(self, stop: Sequence[str], tokenizer: PreTrainedTokenizerBase, start: int) -> None:
        self._stop, self._tokenizer, self._start = stop, tokenizer, start
        # A character is up to four tokens of bytes, and special tokens may be none.
        self._window = 4 * max(map(len, stop)) + 8

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **kwargs: object) -> torch.BoolTensor:
        """Whether each sequence has ended."""
        answers = input_ids[:, self._start :][:, -self._window :].tolist()
        texts = [decoded(answer, self._tokenizer) for answer in answers]
        ended = [any(stop in text for stop in self._stop) for text in texts]
        return torch.tensor(ended, device=input_ids.device)  # type: ignore[return-value]  # a Tensor of that dtype


class Deadline(StoppingCriteria):
    """Ends the generation with an error at a deadline.

    Args:
        seconds: Of the whole call.
        end: When it is over, as `time.monotonic` counts it.
    """

    def __init__(self, seconds: float, end: float) -> None:
        self._seconds, self._end = seconds, end

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **kwargs: object) -> torch.BoolTensor:
        """No sequence has ended.

        Raises:
            TimeoutError: The deadline is over.
        """
        if time.monotonic() > self._end:
            raise TimeoutError(
                f"sample() has taken longer than timeout={self._seconds} seconds; use a longer timeout=, or fewer "
                "prompts or tokens at once"
            )
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)  # type: ignore[return-value]  # a Tensor of that dtype
