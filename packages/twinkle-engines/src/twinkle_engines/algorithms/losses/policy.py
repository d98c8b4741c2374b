"""Policy gradients: losses of tokens that an earlier policy wrote.

In the formulas p is the model's probability of a token, q that of the policy that wrote it (`logprobs` of the batch;
with a correction `proximal`), A the token's advantage (`advantages`), and r = p / q, at most e^20. No gradient flows
through q, A and sg(...). Each loss takes log p of each token, of the shape of the batch, and the batch; it returns its
values and what it measured, both of that shape. KeyError: a column is missing; ValueError: it cannot be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch

from twinkle_engines.algorithms.losses.counting import counted, needed, sequence_means

if TYPE_CHECKING:
    from collections.abc import Mapping

    Made: TypeAlias = tuple[torch.Tensor, dict[str, torch.Tensor]]

MOST_LOG_RATIO = 20.0
"""The logarithm of the largest ratio that counts, as in verl: the gradient of one that overflows is not a number."""


def ppo(
    current: torch.Tensor,
    batch: Mapping[str, torch.Tensor],
    low: float = 0.2,
    high: float = 0.2,
    dual: float | None = None,
) -> Made:
    """-min(r A, clip(r, 1 - low, 1 + high) A); where A < 0 at most -dual A.

    PPO (Schulman et al. 2017, arXiv 1707.06347), and its dual clip (Ye et al. 2020, arXiv 1912.09729), which bounds the
    loss of a token that has become much likelier than it was.

    It reads `logprobs` and `advantages`. A ratio counts from 1 - low to 1 + high; dual, above 1, is the largest that
    counts where A < 0. Measured: "ratio", r; "clipped", whether the token has no gradient for that.
    """
    if dual is not None and dual <= 1:
        raise ValueError(f"the dual clip of ppo is above 1, got dual={dual}")
    advantages = _advantages(batch, "ppo")
    return _clipped(_log_ratio(current, batch, "ppo").exp(), advantages, low, high, dual)


def grpo(
    current: torch.Tensor, batch: Mapping[str, torch.Tensor], low: float = 0.2, high: float = 0.2, beta: float = 0.0
) -> Made:
    """-min(r A, clip(r, 1 - low, 1 + high) A) + beta k3(p, reference).

    GRPO (Shao et al. 2024, arXiv 2402.03300); Dr. GRPO (arXiv 2503.20783) is `normalize="constant"`.

    It reads `logprobs`, `advantages` and, where beta is not 0, `ref_logprobs`; then "kl", k3, is measured too. Other
    options and measures are as for `ppo`.
    """
    advantages = _advantages(batch, "grpo")
    values, measures = _clipped(_log_ratio(current, batch, "grpo").exp(), advantages, low, high)
    if not beta:
        return values, measures
    reference = needed(batch, "ref_logprobs", "grpo with beta").detach()
    kl = torch.where(counted(batch), k3(current, torch.where(counted(batch), reference, 0)), 0)
    return values + beta * kl, {**measures, "kl": kl}


def dapo(current: torch.Tensor, batch: Mapping[str, torch.Tensor], low: float = 0.2, high: float = 0.28) -> Made:
    """-min(r A, clip(r, 1 - low, 1 + high) A), with a higher upper bound ("clip-higher"), for "token" normalisation.

    DAPO (Yu et al. 2025, arXiv 2503.14476). Arguments and measures as for `ppo`.
    """
    return _clipped(_log_ratio(current, batch, "dapo").exp(), _advantages(batch, "dapo"), low, high)


def gspo(current: torch.Tensor, batch: Mapping[str, torch.Tensor], low: float = 3e-4, high: float = 4e-4) -> Made:
    """-min(s A, clip(s, 1 - low, 1 + high) A), s = exp(mean of log r over the counted tokens of the sequence).

    GSPO (Zheng et al. 2025, arXiv 2507.18071), whose bounds are the defaults; for "sequence" normalisation. Arguments
    and measures as for `ppo`, with s in the place of r; `sequence_ids` where the batch is packed.
    """
    ratio = sequence_means(_log_ratio(current, batch, "gspo"), batch).exp()
    return _clipped(ratio, _advantages(batch, "gspo"), low, high)


def cispo(current: torch.Tensor, batch: Mapping[str, torch.Tensor], low: float = 1.0, high: float = 4.0) -> Made:
    """-sg(clip(r, 1 - low, 1 + high)) A log p.

    CISPO (MiniMax-M1, arXiv 2506.13585): every token keeps its gradient, only its weight is bounded. As there, no lower
    bound is set (low = 1); that the largest weight is 5 follows ScaleRL (arXiv 2510.13786).

    It reads `logprobs` and `advantages`; low and high are as for `ppo`. Measured: "ratio", r; "clipped", whether the
    weight is another one.
    """
    ratio = _log_ratio(current, batch, "cispo").detach().exp()
    weight = ratio.clamp(1 - low, 1 + high)
    values = -weight * _advantages(batch, "cispo") * current
    return values, {"ratio": ratio, "clipped": (weight != ratio).float()}


def importance_sampling(current: torch.Tensor, batch: Mapping[str, torch.Tensor]) -> Made:
    """-r A: the policy gradient with the importance weight of samples of another policy, unbounded.

    Kahn and Marshall 1953; by token, as Tinker's loss of this name. With a correction q is p, held constant. It reads
    `logprobs` and `advantages`, and measures "ratio", r.
    """
    ratio = _log_ratio(current, batch, "importance_sampling").exp()
    return -ratio * _advantages(batch, "importance_sampling"), {"ratio": ratio}


def reinforce(current: torch.Tensor, batch: Mapping[str, torch.Tensor]) -> Made:
    """-A log p: the policy gradient of samples of the model itself (Williams 1992). It reads `advantages`."""
    return -_advantages(batch, "reinforce") * current, {}


def _clipped(ratio: torch.Tensor, advantages: torch.Tensor, low: float, high: float, dual: float | None = None) -> Made:
    """The clipped loss, with its measures."""
    free, bounded = ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages
    clipped = bounded < free
    values = -torch.minimum(free, bounded)
    if dual is not None:
        most = -dual * advantages
        clipped = clipped | ((advantages < 0) & (values > most))
        values = torch.where(advantages < 0, torch.minimum(values, most), values)
    return values, {"ratio": ratio, "clipped": clipped.float()}


def _log_ratio(current: torch.Tensor, batch: Mapping[str, torch.Tensor], loss: str) -> torch.Tensor:
    """Log r, 0 where a token does not count: a ratio there could be infinite, and 0 times its gradient no number."""
    log_ratio = current - needed(batch, "logprobs", loss).detach()
    return torch.where(counted(batch), log_ratio, 0).clamp(max=MOST_LOG_RATIO)


def _advantages(batch: Mapping[str, torch.Tensor], loss: str) -> torch.Tensor:
    """The advantages, 0 where a token does not count: 0 times what is no number there is none either."""
    return torch.where(counted(batch), needed(batch, "advantages", loss).detach(), 0)


def k3(logprobs: torch.Tensor, ref_logprobs: torch.Tensor) -> torch.Tensor:
    """(r - 1) - log r with r = q(x) / p(x), at most e^20: KL(p | q) from samples of p, unbiased, and never negative.

    Schulman (joschu.net/blog/kl-approx.html). Both are log-probabilities of the samples, of one shape.
    """
    difference = (ref_logprobs - logprobs).clamp(max=MOST_LOG_RATIO)
    return difference.expm1() - difference
