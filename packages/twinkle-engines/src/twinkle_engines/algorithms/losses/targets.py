"""Losses of what was given for each token: its id, its return, or what a teacher T says, of the model p.

With `teacher`, the teacher's log-probability of each token, `reverse_kl` is a policy gradient. With `teacher_ids` and
`teacher_top`, the teacher's k likeliest tokens and their log-probabilities, [sequences, tokens, k], the divergences
are sums over these tokens and one more outcome, all the others together: exact where k is the vocabulary's size, and
at most the whole divergence where it is less. `top_logprobs` are the model's log-probabilities of `teacher_ids`, of
the same shape, which `forward_backward` gives.
"""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

import torch

from twinkle_engines.algorithms.losses.counting import counted, needed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinkle_engines.algorithms.losses.policy import Made

_LEAST = 1e-7  # the probability of all other tokens, whose logarithm is finite


def cross_entropy(current: torch.Tensor, batch: Mapping[str, torch.Tensor]) -> Made:
    """-log p of each token, of the shape of the batch, which is not read."""
    return -current, {}


def value(current: torch.Tensor, batch: Mapping[str, torch.Tensor], clip: float | None = None) -> Made:
    """max((v - R)^2, (clip(v, v_old - clip, v_old + clip) - R)^2) / 2, R the return; without clip (v - R)^2 / 2.

    PPO's loss of a critic (github.com/openai/baselines, ppo2; Engstrom et al. 2020, arXiv 2005.12729).

    It reads `returns` and, with clip, `values`, those of the critic before its steps; clip is how far from them a value
    counts, above 0. Measured with clip: "clipped", whether the clipped one counts.
    """
    there = counted(batch)
    returns = torch.where(there, needed(batch, "returns", "value").detach(), 0)
    plain = (current - returns) ** 2
    if clip is None:
        return plain / 2, {}
    old = torch.where(there, needed(batch, "values", "value with clip").detach(), 0)
    bounded = (torch.maximum(torch.minimum(current, old + clip), old - clip) - returns) ** 2
    return torch.maximum(plain, bounded) / 2, {"clipped": (bounded > plain).float()}


def reverse_kl(
    current: torch.Tensor, batch: Mapping[str, torch.Tensor], top_logprobs: torch.Tensor | None = None
) -> Made:
    """KL(p | T) = sum of p log(p / T); from samples of p, p / sg(p) sg(log p - log T), whose gradient has that mean.

    On-policy distillation (Agarwal et al. 2023, arXiv 2306.13649; thinkingmachines.ai/blog, 2025). Samples of another
    policy are weighted by "importance_sampling", with advantages of log T - log q.

    It reads `teacher`, or `teacher_ids` and `teacher_top`. Measured: "kl", log p - log T, or the divergence.
    """
    if top_logprobs is not None:
        student, teacher = _outcomes(top_logprobs, batch, "reverse_kl")
        kl = _kl(student, teacher)
        return kl, {"kl": kl}
    there = counted(batch)
    gap = torch.where(there, current.detach() - needed(batch, "teacher", "reverse_kl").detach(), 0)
    ratio = torch.where(there, current - current.detach(), 0).exp()
    return ratio * gap, {"kl": gap}


def forward_kl(current: torch.Tensor, batch: Mapping[str, torch.Tensor], top_logprobs: torch.Tensor) -> Made:
    """KL(T | p) = sum of T log(T / p) (Hinton et al. 2015, arXiv 1503.02531), which is measured as "kl".

    It reads `teacher_ids` and `teacher_top`.
    """
    student, teacher = _outcomes(top_logprobs, batch, "forward_kl")
    kl = _kl(teacher, student)
    return kl, {"kl": kl}


def jsd(
    current: torch.Tensor, batch: Mapping[str, torch.Tensor], top_logprobs: torch.Tensor, beta: float = 0.5
) -> Made:
    """Divergence beta KL(T | M) + (1 - beta) KL(p | M), M = beta T + (1 - beta) p.

    Generalized Jensen-Shannon divergence (GKD, Agarwal et al. 2023, arXiv 2306.13649).

    beta is the teacher's share of M, in (0, 1), else ValueError. Measured: "kl", KL(T | p).
    """
    if not 0 < beta < 1:
        raise ValueError(f"the teacher's share of jsd is in (0, 1), got beta={beta}; use forward_kl or reverse_kl")
    student, teacher = _outcomes(top_logprobs, batch, "jsd")
    mixture = torch.logaddexp(teacher + log(beta), student + log(1 - beta))
    divergence = beta * _kl(teacher, mixture) + (1 - beta) * _kl(student, mixture)
    return divergence, {"kl": _kl(teacher, student)}


def _outcomes(
    top_logprobs: torch.Tensor, batch: Mapping[str, torch.Tensor], loss: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of model and teacher for k tokens and all others, [sequences, tokens, k + 1]."""
    if missing := [name for name in ("teacher_ids", "teacher_top") if name not in batch]:
        raise KeyError(f"the loss {loss} needs the column {missing[0]}, and the batch has {', '.join(batch)}")
    there = counted(batch)[..., None]
    both = (torch.where(there, one.to(top_logprobs.dtype), -1e4) for one in (top_logprobs, batch["teacher_top"]))
    student, teacher = (torch.cat([one, _others(one)], -1) for one in both)
    return student, teacher.detach()


def _others(top: torch.Tensor) -> torch.Tensor:
    return torch.log1p(-top.exp().sum(-1, keepdim=True).clamp(max=1 - _LEAST))


def _kl(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """KL(left | right) of log-probabilities over the last dim."""
    return (left.exp() * (left - right)).sum(-1)
