"""Losses of what was given for each token: its id, or its return. Short: two formulas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from twinkle_engines.algorithms.losses.counting import counted, needed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinkle_engines.algorithms.losses.policy import Made


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
