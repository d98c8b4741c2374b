"""Agreement of engines: how far the log-probabilities of a sampler are from a trainer's on the same tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from twinkle_engines.batches.columns import entry
from twinkle_engines.batches.given import instance, listed
from twinkle_engines.batches.rollouts import Rollouts
from twinkle_remote import get

if TYPE_CHECKING:
    from collections.abc import Sequence


def mismatch(rollouts: Rollouts, logprobs: Sequence[torch.Tensor]) -> dict[str, float]:
    """The ratio between the sampler's and the trainer's probability of a token, on average and at worst.

    With q the probability that the sampler wrote down and p that of the trainer, the ratio of a token is
    `exp(abs(log p - log q)) = max(p / q, q / p)`. It is 1 where both agree, and it is the factor by which the engines
    alone put a policy loss off, before the policy has moved ("Your Efficient RL Framework Secretly Brings You
    Off-Policy RL Training", Yao et al. 2025). Take both with the same weights.

    Args:
        rollouts: With `logprobs`, those of the sampler.
        logprobs: Of the same sequences, such as `TransformersModel.logprobs` returns: as long as their ids.

    Returns:
        "mean" and "worst" over the tokens that the mask counts, without the first of a sequence; both at or above 1,
        and 1 where no token counts.

    Raises:
        TypeError: They are no rollouts.
        ValueError: The rollouts have no log-probabilities, or those given are of other sequences.
    """
    sampled = instance(Rollouts, "rollouts", rollouts).logprobs
    if sampled is None:
        raise ValueError("these rollouts have no log-probabilities: a sampler writes them, or replace(logprobs=...)")
    logprobs = [entry("logprobs", values) for values in listed("logprobs", get(logprobs), "sequence")]
    if [len(values) if values.dim() == 1 else -1 for values in logprobs] != rollouts.lengths:
        raise ValueError(
            f"there are log-probabilities of {len(logprobs)} sequences with {sum(map(torch.numel, logprobs))} tokens, "
            f"but the rollouts have {len(rollouts.lengths)} with {sum(rollouts.lengths)}: one value a token"
        )
    masks = [torch.ones_like(ids) for ids in rollouts.ids] if rollouts.mask is None else rollouts.mask
    gaps = [
        (p.double().cpu() - q.double().cpu()).abs()[1:][mask.bool().cpu()[1:]]
        for p, q, mask in zip(logprobs, sampled, masks, strict=True)
    ]
    ratios = torch.cat([*gaps, torch.empty(0, dtype=torch.float64)]).exp()
    if not len(ratios):
        return {"mean": 1.0, "worst": 1.0}
    return {"mean": ratios.mean().item(), "worst": ratios.max().item()}
