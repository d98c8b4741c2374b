"""SamplingParams: how a sampler draws tokens, alike for every sampler."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn, and when a sequence ends.

    Attributes:
        temperature: Divides the logits, at or above 0; 0 takes the likeliest token.
        top_k: Draws from so many likeliest tokens; 0 from all.
        top_p: Draws from the likeliest tokens that make up this probability, in (0, 1].
        min_p: Leaves out tokens that are less likely than this share of the likeliest one, in [0, 1].
        n: Sequences for each prompt.
        max_new_tokens: Longest answer, in tokens.
        stop: A sequence ends when its answer contains one of these texts.
        seed: Answers are a function of it, of the prompt and of the answer's number: a prompt that is asked for twice
            gets the same ones. None draws one for each prompt of each call.

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

    def __post_init__(self) -> None:
        stop: object = self.stop
        object.__setattr__(self, "stop", (stop,) if isinstance(stop, str) else tuple(self.stop))
        for field, holds, rule in (
            ("temperature", self.temperature >= 0, "at or above 0"),
            ("top_k", self.top_k >= 0, "at or above 0"),
            ("top_p", 0 < self.top_p <= 1, "in (0, 1]"),
            ("min_p", 0 <= self.min_p <= 1, "in [0, 1]"),
            ("n", self.n >= 1, "at or above 1"),
            ("max_new_tokens", self.max_new_tokens >= 1, "at or above 1"),
            ("stop", all(self.stop), "made of texts that are not empty"),
        ):
            if not holds:
                raise ValueError(f"{field} is {rule}, got {getattr(self, field)!r}")
