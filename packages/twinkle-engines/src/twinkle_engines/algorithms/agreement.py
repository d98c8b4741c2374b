"""Agreement of engines: how far the log-probabilities of a sampler are from a trainer's on the same tokens.

Short: it is no algorithm, but what a loop logs next to the losses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from twinkle_remote import get

if TYPE_CHECKING:
    from twinkle_engines.batches.rollouts import Rollouts


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
