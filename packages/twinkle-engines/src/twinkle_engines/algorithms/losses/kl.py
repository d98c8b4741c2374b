"""Estimators of the divergence KL(p | q) from samples of p, by Schulman (joschu.net/blog/kl-approx.html)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

MOST_LOG_RATIO = 20.0
"""The logarithm of the largest ratio that counts, as in verl: the gradient of one that overflows is not a number."""


def k1(logprobs: torch.Tensor, ref_logprobs: torch.Tensor) -> torch.Tensor:
    """-log r with r = q(x) / p(x): unbiased, and negative for half of the samples.

    Args:
        logprobs: log p of the samples, which come of p.
        ref_logprobs: log q of them, of the same shape.
    """
    return logprobs - ref_logprobs


def k2(logprobs: torch.Tensor, ref_logprobs: torch.Tensor) -> torch.Tensor:
    """(log r)^2 / 2: biased, with little variance. Arguments as for `k1`."""
    return (ref_logprobs - logprobs).square() / 2


def k3(logprobs: torch.Tensor, ref_logprobs: torch.Tensor) -> torch.Tensor:
    """(r - 1) - log r: unbiased, and never negative; r is at most e^20. Arguments as for `k1`."""
    difference = (ref_logprobs - logprobs).clamp(max=MOST_LOG_RATIO)
    return difference.expm1() - difference


ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}
