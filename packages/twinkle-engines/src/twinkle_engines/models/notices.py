"""Warnings of a model, each once: a training that runs and learns nothing, or something else than what was meant.

docs/checks.md lists each with what is looked at, and when.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor

from twinkle_engines.batches.padding import TRUNCATED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_engines.batches.micro_batches import MicroBatch
    from twinkle_engines.models.layout import ModelLayout
    from twinkle_engines.models.objective import Found, Objective

_STEPS = 10
"""Steps after which adapters have changed."""


class Seen(NamedTuple):
    """Marks of a batch: sequences, samples of a part of the tokens, shifted labels, prompts without a mask."""

    has_rows: bool
    is_truncated: bool
    is_shifted: bool
    is_unmasked: bool


def look(aim: Objective, parts: Sequence[MicroBatch], has_mask: bool) -> Seen:
    """The marks of this rank's part of a batch; labels of no tokens are shifted ones too."""
    columns = [part.columns for part in parts if part.sequences]
    is_unmasked = aim.is_sampled and not has_mask
    return Seen(
        any(length > 1 for part in parts for length in part.lengths),
        aim.is_sampled and any(bool(one[TRUNCATED].any()) for one in columns if TRUNCATED in one),
        all(map(_is_shifted, columns)),
        is_unmasked and any(bool((one["logprobs"][one["mask"]] == 0).any()) for one in columns if "logprobs" in one),
    )


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

    def batch(self, aim: Objective, found: Found, seen: Seen) -> None:
        """Say what is wrong with a batch of all ranks."""
        if seen.has_rows and not found.tokens:
            self.say("no token of this batch counts, so nothing is learnt from it: look at its labels, or its mask")
        if found.tokens and aim.is_own and not found.has_gradient:
            self.say(
                f"the gradient of the loss {aim.name} is 0, and its tokens count in the next step all the same: "
                "to look at a loss use evaluate_loss()"
            )
        if seen.is_truncated:
            self.say(
                "these rollouts were drawn from a part of the tokens (top_k, top_p or min_p): the loss takes the whole "
                "distribution for what sampled, so its gradient is not that of the expected reward; use top_k=0, "
                "top_p=1.0 and min_p=0.0, or rollouts.replace(truncated_sampling=None) where this is meant"
            )
        if seen.is_shifted and found.tokens:
            self.say(
                "all labels are the ids of the next tokens, so they were shifted before, and are shifted again here: "
                "the model learns each token but one after the next; use labels that stand at their own ids"
            )
        if seen.is_unmasked:
            self.say(
                "log-probabilities of exactly 0 stand at tokens that count, and there is no mask: tokens of the "
                "prompt, which no model wrote, are trained; give Rollouts a mask that is 1 at what was sampled"
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


def _is_shifted(columns: dict[str, Any]) -> bool:
    """Whether what counts is predicted as the id of the next token, and not as its own."""
    ids, targets, counted = columns["input_ids"][:, :-1], columns["targets"][:, :-1], columns["mask"][:, :-1]
    following = columns["input_ids"][:, 1:]
    is_next = bool((targets == following)[counted].all()) and int(counted.sum()) > 3
    return is_next and bool((targets != ids)[counted].any())
