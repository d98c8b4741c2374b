"""Policy gradients: losses of tokens that an earlier policy wrote.

In the formulas p is the model's probability of a token, q that of the policy that wrote it (`logprobs` of the batch),
A the token's advantage (`advantages`), and r = p / q, at most e^20. No gradient flows through q, A and sg(...).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from twinkle_engines.algorithms.losses.counting import counted, needed, sequence_means
from twinkle_engines.algorithms.losses.kl import MOST_LOG_RATIO, k3

if TYPE_CHECKING:
    from collections.abc import Mapping


def grpo(
    logprobs: torch.Tensor,
    batch: Mapping[str, torch.Tensor],
    low: float = 0.2,
    high: float = 0.2,
    beta: float = 0.0,
) -> torch.Tensor:
    """-min(r A, clip(r, 1 - low, 1 + high) A) + beta k3(p, reference).

    PPO's clipped loss (Schulman et al. 2017, arXiv 1707.06347), with the penalty of GRPO (Shao et al. 2024, arXiv
    2402.03300), and with two bounds as DAPO has them ("clip-higher", Yu et al. 2025, arXiv 2503.14476: 0.2 and 0.28).

    Args:
        logprobs: log p of each token, of the shape of the batch.
        batch: With `logprobs` and `advantages`; `ref_logprobs` where beta is not 0.
        low: How far below 1 a ratio counts, in [0, 1].
        high: How far above 1 a ratio counts, at or above 0.
        beta: Weight of the penalty.

    Raises:
        ValueError: The batch has not what it needs.
    """
    advantages = _advantages(batch, "grpo")
    ratio = _log_ratio(logprobs, batch, "grpo").exp()
    loss = -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    if not beta:
        return loss
    reference = needed(batch, "ref_logprobs", "grpo with beta").detach()
    return loss + beta * torch.where(counted(batch), k3(logprobs, torch.where(counted(batch), reference, 0)), 0)


def gspo(
    logprobs: torch.Tensor, batch: Mapping[str, torch.Tensor], low: float = 3e-4, high: float = 4e-4
) -> torch.Tensor:
    """-min(s A, clip(s, 1 - low, 1 + high) A), s = exp(mean of log r over the counted tokens of the sequence).

    GSPO (Zheng et al. 2025, arXiv 2507.18071), whose bounds are the defaults; for "sequence" normalisation.

    Args:
        logprobs: log p of each token, of the shape of the batch.
        batch: With `logprobs` and `advantages`; `sequence_ids` where it is packed.
        low: How far below 1 a ratio counts, in [0, 1].
        high: How far above 1 a ratio counts, at or above 0.

    Raises:
        ValueError: The batch has not what it needs.
    """
    advantages = _advantages(batch, "gspo")
    ratio = sequence_means(_log_ratio(logprobs, batch, "gspo"), batch).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


def cispo(
    logprobs: torch.Tensor, batch: Mapping[str, torch.Tensor], low: float = 1.0, high: float = 4.0
) -> torch.Tensor:
    """-sg(clip(r, 1 - low, 1 + high)) A log p.

    CISPO (MiniMax-M1, arXiv 2506.13585): every token keeps its gradient, only its weight is bounded. As there, no lower
    bound is set (low = 1); that the largest weight is 5 follows ScaleRL (arXiv 2510.13786).

    Args:
        logprobs: log p of each token, of the shape of the batch.
        batch: With `logprobs` and `advantages`.
        low: How far below 1 a weight may be, in [0, 1].
        high: How far above 1 a weight may be, at or above 0.

    Raises:
        ValueError: The batch has not what it needs.
    """
    advantages = _advantages(batch, "cispo")
    weight = _log_ratio(logprobs, batch, "cispo").detach().exp().clamp(1 - low, 1 + high)
    return -weight * advantages * logprobs


def importance_sampling(logprobs: torch.Tensor, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """-r A: the policy gradient (Williams 1992), with the importance weight of samples of another policy, unbounded.

    Args:
        logprobs: log p of each token, of the shape of the batch.
        batch: With `logprobs` and `advantages`.

    Raises:
        ValueError: The batch has not what it needs.
    """
    return -_log_ratio(logprobs, batch, "importance_sampling").exp() * _advantages(batch, "importance_sampling")


def _log_ratio(logprobs: torch.Tensor, batch: Mapping[str, torch.Tensor], loss: str) -> torch.Tensor:
    """Log r, 0 where a token does not count: a ratio there could be infinite, and 0 times its gradient no number."""
    log_ratio = logprobs - needed(batch, "logprobs", loss).detach()
    return torch.where(counted(batch), log_ratio, 0).clamp(max=MOST_LOG_RATIO)


def _advantages(batch: Mapping[str, torch.Tensor], loss: str) -> torch.Tensor:
    """The advantages, 0 where a token does not count: 0 times what is no number there is none either."""
    return torch.where(counted(batch), needed(batch, "advantages", loss).detach(), 0)
