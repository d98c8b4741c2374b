"""Answer: one sequence that a model has written to a prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


class Answer(NamedTuple):
    """One sequence: the prompt's ids, the answer's, their log-probabilities, and why it ended."""

    prompt: list[int]
    ids: list[int]
    logprobs: torch.Tensor
    finish: str
