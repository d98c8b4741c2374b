"""Correction: weights of tokens that another policy wrote than the one whose step is made. Short: one rule.

A sampler's probabilities are not the trainer's, and its weights may be older ("Your Efficient RL Framework Secretly
Brings You Off-Policy RL Training", Yao et al. 2025; decoupled PPO, arXiv 2110.00641).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from twinkle_engines.algorithms.losses.counting import counted, needed, sequence_means, sequence_sums
from twinkle_engines.algorithms.losses.policy import MOST_LOG_RATIO

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Correction:
    """w = exp(proximal - logprobs), by which advantages are multiplied; the ratio of the loss is then to `proximal`.

    Attributes:
        rule: "truncate" takes a weight above cap, or below floor, as that bound; "mask" takes 0 for it.
        by: "token"; "sequence" is the product over the counted tokens of a sequence, "geometric" their geometric mean.
        cap: The largest weight, above 0.
        floor: The smallest one, at or above 0; None for any.

    """

    rule: Literal["truncate", "mask"] = "truncate"
    by: Literal["token", "sequence", "geometric"] = "token"
    cap: float = 2.0
    floor: float | None = None

    def __post_init__(self) -> None:
        if self.rule not in ("truncate", "mask") or self.by not in ("token", "sequence", "geometric"):
            raise ValueError(
                f"a correction is 'truncate' or 'mask', by 'token', 'sequence' or 'geometric', got {self.rule!r}, "
                f"by={self.by!r}"
            )
        if not 0 <= (self.floor or 0) <= self.cap or not self.cap > 0:
            raise ValueError(f"0 <= floor <= cap and cap > 0, got floor={self.floor}, cap={self.cap}")

    def applied(
        self, batch: Mapping[str, torch.Tensor], proximal: torch.Tensor
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """The batch with weighted advantages and `proximal`, of its shape, as its log-probabilities.

        Measured: "cut", whether the token's weight was out of its bounds.
        """
        there, proximal = counted(batch), proximal.detach()
        logs = torch.where(there, proximal - needed(batch, "logprobs", "with a correction").detach(), 0)
        if self.by != "token":
            logs = (sequence_sums if self.by == "sequence" else sequence_means)(logs, batch)
        weights = logs.clamp(max=MOST_LOG_RATIO).exp()
        bounded = weights.clamp(self.floor, self.cap)
        cut = bounded != weights
        if self.rule == "mask":
            bounded = torch.where(cut, 0, weights)
        advantages = torch.where(there, needed(batch, "advantages", "with a correction"), 0)
        return {**batch, "logprobs": proximal, "advantages": advantages * bounded}, {"cut": cut.float()}
