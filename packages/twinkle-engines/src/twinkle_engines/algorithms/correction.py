"""Correction: weights of tokens that another policy wrote than the one whose step is made; and how far they are apart.

A sampler's probabilities are not the trainer's, and its weights may be older ("Your Efficient RL Framework Secretly
Brings You Off-Policy RL Training", Yao et al. 2025; decoupled PPO, arXiv 2110.00641).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from twinkle_engines.algorithms.losses.counting import counted, needed, sequence_means, sequence_sums
from twinkle_engines.algorithms.losses.policy import MOST_LOG_RATIO
from twinkle_remote import get

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinkle_engines.batches.rollouts import Rollouts


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


def mismatch(rollouts: Rollouts, column: str = "proximal") -> dict[str, float]:
    """The ratio between the sampler's and the trainer's probability of a token, on average and at worst.

    With q the probability that the sampler wrote down and p that of the trainer, the ratio of a token is
    `exp(abs(log p - log q)) = max(p / q, q / p)`. It is 1 where both agree, and it is the factor by which the engines
    alone put a policy loss off, before the policy has moved ("Your Efficient RL Framework Secretly Brings You
    Off-Policy RL Training", Yao et al. 2025). Take both with the same weights.

    Args:
        rollouts: With `logprobs`, those of the sampler, and the trainer's, as `annotate` adds them.
        column: Name of the trainer's column.

    Returns:
        "mean" and "worst" over the tokens that the mask counts, without the first of a sequence; both at or above 1,
        and 1 where no token counts.

    Raises:
        KeyError: The rollouts have no such columns.
    """
    rollouts = get(rollouts)
    ids, found = rollouts.ids, (rollouts.column(column), rollouts.column("logprobs"))
    masks = rollouts.mask or [torch.ones_like(one) for one in ids]
    gaps = [
        (p.double().cpu() - q.double().cpu()).abs()[1:][mask.bool().cpu()[1:]]
        for p, q, mask in zip(*found, masks, strict=True)
    ]
    ratios = torch.cat([*gaps, torch.empty(0, dtype=torch.float64)]).exp()
    if not len(ratios):
        return {"mean": 1.0, "worst": 1.0}
    return {"mean": ratios.mean().item(), "worst": ratios.max().item()}
