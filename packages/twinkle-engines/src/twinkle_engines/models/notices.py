"""Warnings of a model, each once: a training that runs and learns nothing, or something else than what was meant.

docs/checks.md lists each with what is looked at, and when.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_engines.models.layout import ModelLayout
    from twinkle_engines.models.objective import Found

_STEPS = 10
"""Steps after which adapters have changed."""


class Notices:
    """Warnings of one model, each once, on the first rank."""

    def __init__(self, layout: ModelLayout, adapters: Sequence[torch.Tensor]) -> None:
        self._layout, self._adapters = layout, adapters
        self._said: set[str] = set()
        self._begun = self._sum()
        self._steps = 0

    def say(self, what: str) -> None:
        """Warn once."""
        if self._layout.is_first and what not in self._said:
            warnings.warn(what, stacklevel=4)
        self._said.add(what)

    def batch(self, found: Found) -> None:
        """Say what is wrong with a batch of all ranks."""
        if found.has_rows and not found.tokens:
            self.say("no token of this batch counts, so nothing is learnt from it: look at its labels, or its mask")
        if found.is_truncated:
            self.say(
                "these rollouts were drawn from a part of the tokens (top_k, top_p or min_p): the loss takes the whole "
                "distribution for what sampled, so its gradient is not that of the expected reward; use top_k=0, "
                "top_p=1.0 and min_p=0.0, or rollouts.replace(truncated_sampling=None) where this is meant"
            )

    def step(self, norm: float) -> None:
        """Say what is wrong with a step that is made next."""
        if norm == 0:
            self.say(
                "the whole gradient is 0, so a step learns nothing: rewards are equal in each group, a group has one "
                "answer, no reward function votes, or the mask has no tokens of the model"
            )
        self._steps += 1
        if self._adapters and self._steps == _STEPS + 1 and not self._layout.max_over_all(self._sum() - self._begun):
            self.say(
                f"the adapters are after {_STEPS} steps what they were: look at lora_alpha, which scales them, at the "
                "learning rate, and at whether the optimizer has the parameters that it was given"
            )

    @torch.no_grad()
    def _sum(self) -> float:
        parts = [one.to_local() if isinstance(one, DTensor) else one for one in self._adapters]
        return sum(float(one.double().abs().sum()) for one in parts)
