"""SamplingParams: how a sampler draws tokens, alike for every sampler."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SamplingParams:
    """The way that tokens are drawn, and when a sequence ends.

    Attributes:
        temperature: Divides the logits, at or above 0; 0 takes the likeliest token.
        top_k: Draws from so many likeliest tokens; 0 from all.
        top_p: Draws from the likeliest tokens that make up this probability, in (0, 1].
        min_p: Leaves out tokens that are less likely than this share of the likeliest one, in [0, 1].
        n: Sequences for each prompt.
        max_new_tokens: Longest answer, in tokens.
        stop: A sequence ends when its answer contains one of these texts; one text stands for itself.
        seed: Answers are a function of it, of the prompt and of the answer's number: a prompt that is asked for twice
            gets the same ones. None draws one for each prompt of each call.
        skip_special_tokens: Leave special tokens, such as marks of thoughts and tools, out of the answers' texts. The
            token that ends an answer is never in its text.

    Raises:
        ValueError: A value is out of its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    n: int = 1
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    seed: int | None = None
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        given: Any = self.stop
        stop = (given,) if isinstance(given, str) else tuple(given)
        object.__setattr__(self, "stop", stop)
        for name, holds, rule in (
            ("temperature", 0 <= self.temperature < math.inf, "at or above 0, and finite"),
            ("top_k", self.top_k >= 0, "at or above 0"),
            ("top_p", 0 < self.top_p <= 1, "in (0, 1]"),
            ("min_p", 0 <= self.min_p <= 1, "in [0, 1]"),
            ("n", self.n >= 1, "at or above 1"),
            ("max_new_tokens", self.max_new_tokens >= 1, "at or above 1"),
            ("stop", all(stop), "made of texts that are not empty"),
        ):
            if not holds:
                raise ValueError(f"{name} is {rule}, got {getattr(self, name)!r}")

    @property
    def is_truncated(self) -> bool:
        """Whether tokens are drawn from a part of all: by top_k, top_p or min_p. A greedy answer is not drawn."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)


def chosen_params(given: SamplingParams | None, own: SamplingParams | None, has_tokenizer: bool) -> SamplingParams:
    """The parameters of a call: those given, or the sampler's own.

    Raises:
        TypeError: They are something else.
        ValueError: There are none, or they have texts to stop at, which need a tokenizer.
    """
    found = own if given is None else given
    if found is None:
        raise ValueError("sample() has no parameters: give it SamplingParams, or params= to the sampler")
    if not isinstance(found, SamplingParams):
        raise TypeError(f"params is SamplingParams, got {found!r:.80}; use SamplingParams(**mapping) for a mapping")
    if found.stop and not has_tokenizer:
        raise ValueError("stop is texts, which need a tokenizer: use tokenizer= of the sampler")
    return found
