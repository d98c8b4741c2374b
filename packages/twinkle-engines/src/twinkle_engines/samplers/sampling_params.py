"""SamplingParams: how a sampler draws tokens, alike for every sampler."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from twinkle_engines.batches.given import flag, fraction, whole
from twinkle_mesh import check_known_names


@dataclass(frozen=True)
class SamplingParams:
    """The way that tokens are drawn, and when a sequence ends.

    Numbers may be those of Python, numpy and torch, and become Python's; a whole number may stand for a fraction, and
    a fraction such as 8.0, as files of configurations have it, for a whole number.

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
        skip_special_tokens: Leave special tokens, such as marks of thoughts and tools, out of the answers' texts. The
            token that ends an answer is never in its text.

    Raises:
        TypeError: A value is of another type.
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

    if not TYPE_CHECKING:  # type checkers know the names by themselves

        def __new__(cls, *args: object, **named: object) -> SamplingParams:
            """Refuse names that there are not, with those that there are."""
            check_known_names("SamplingParams", named, [field.name for field in fields(cls)])
            return super().__new__(cls)

    def __post_init__(self) -> None:
        for field in fields(self):
            value: Any = getattr(self, field.name)
            if field.name == "stop":
                value = _texts(value)
            elif field.name == "skip_special_tokens":
                value = flag(field.name, value)
            elif field.name != "seed" or value is not None:
                value = (fraction if field.type == "float" else whole)(field.name, value)
            object.__setattr__(self, field.name, value)
        for name, holds, rule in (
            ("temperature", 0 <= self.temperature < math.inf, "at or above 0, and finite"),
            ("top_k", self.top_k >= 0, "at or above 0"),
            ("top_p", 0 < self.top_p <= 1, "in (0, 1]"),
            ("min_p", 0 <= self.min_p <= 1, "in [0, 1]"),
            ("n", self.n >= 1, "at or above 1"),
            ("max_new_tokens", self.max_new_tokens >= 1, "at or above 1"),
            ("stop", all(self.stop), "made of texts that are not empty"),
        ):
            if not holds:
                raise ValueError(f"{name} is {rule}, got {getattr(self, name)!r}")

    @property
    def is_truncated(self) -> bool:
        """Whether tokens are drawn from a part of all: by top_k, top_p or min_p. A greedy answer is not drawn."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)


def checked_params(given: object, own: SamplingParams | None) -> SamplingParams:
    """The parameters of a call: those given, or the sampler's own; checked, also where they came from elsewhere.

    Raises:
        TypeError: They are something else.
        ValueError: There are none, or one is out of its range.
    """
    found = own if given is None else given
    if found is None:
        raise ValueError("sample() has no parameters: give it SamplingParams, or params= to the sampler")
    if not isinstance(found, SamplingParams):
        raise TypeError(
            f"params is SamplingParams, got {type(found).__name__} {found!r:.80}; use SamplingParams(**mapping) for a "
            f"mapping of {', '.join(field.name for field in fields(SamplingParams))}"
        )
    return replace(found)


def _texts(value: Any) -> tuple[str, ...]:
    """The texts that stop: one, several, or none."""
    plain: Any = () if value is None else (value,) if isinstance(value, str) else value
    plain = plain.tolist() if hasattr(plain, "tolist") else plain
    if not isinstance(plain, list | tuple | set | frozenset) or not all(isinstance(text, str) for text in plain):
        raise TypeError(f"stop is a text, or a list of texts, got {value!r} of type {type(value).__name__}")
    return tuple(map(str, sorted(plain) if isinstance(plain, set | frozenset) else plain))
