"""Losses of pairs: of two answers to a prompt, of which the chosen one stands before the rejected one.

In the formulas c and r are numbers of the chosen and of the rejected answer. `current` is log p of each token, (2
pairs, tokens), of a padded batch; of `bradley_terry` a score of each sequence, (2 pairs,). Each loss returns a value
for each pair, (pairs,), and measures "margin", by how much the chosen one is ahead in what is compared, and
"accuracy", whether it is. ValueError: sequences are not in pairs, or the batch is packed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import logsigmoid

from twinkle_engines.algorithms.losses.counting import counted, needed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinkle_engines.algorithms.losses.policy import Made


def dpo(current: torch.Tensor, batch: Mapping[str, torch.Tensor], beta: float = 0.1) -> Made:
    """-log sigmoid(beta (c - r)), c and r the log of p / reference of the answer.

    DPO (Rafailov et al. 2023, arXiv 2305.18290).

    It reads `ref_logprobs`; beta, above 0, is how strongly the model is held to the reference.
    """
    _check_pairs(current, batch, "dpo")
    margin = beta * _difference(_sums(_to_reference(current, batch, "dpo"), batch))
    return -logsigmoid(margin), _measures(margin)


def ipo(current: torch.Tensor, batch: Mapping[str, torch.Tensor], beta: float = 0.1) -> Made:
    """(c - r - 1 / (2 beta))^2, c and r the mean of log(p / reference) over the tokens of the answer.

    IPO (Azar et al. 2023, arXiv 2310.12036); the mean in place of the sum is TRL's.

    It reads `ref_logprobs`; beta, above 0, is how strongly the model is held to the reference.
    """
    _check_pairs(current, batch, "ipo")
    margin = _difference(_means(_to_reference(current, batch, "ipo"), batch))
    return (margin - 1 / (2 * beta)) ** 2, _measures(margin)


def simpo(current: torch.Tensor, batch: Mapping[str, torch.Tensor], beta: float = 2.0, gamma: float = 1.0) -> Made:
    """-log sigmoid(beta (c - r) - gamma), c and r the mean of log p over the tokens of the answer.

    SimPO (Meng et al. 2024, arXiv 2405.14734), without a reference.

    beta scales the difference, and gamma is by how much the chosen one is to be ahead.
    """
    _check_pairs(current, batch, "simpo")
    margin = beta * _difference(_means(current, batch))
    return -logsigmoid(margin - gamma), _measures(margin)


def orpo(current: torch.Tensor, batch: Mapping[str, torch.Tensor], beta: float = 0.1) -> Made:
    """-m(c) - beta log sigmoid(o(c) - o(r)), m the mean of log p over the answer's tokens, o = m - log(1 - e^m).

    ORPO (Hong et al. 2024, arXiv 2403.07691): cross entropy of the chosen answer, and its odds over the other's.

    beta is the weight of the odds.
    """
    _check_pairs(current, batch, "orpo")
    means = _means(current, batch)
    odds = means - torch.log(-torch.expm1(means.clamp(max=-1e-6)))
    margin = _difference(odds)
    return -means[0::2] - beta * logsigmoid(margin), _measures(margin)


def bradley_terry(current: torch.Tensor, batch: Mapping[str, torch.Tensor]) -> Made:
    """-log sigmoid(c - r), c and r the scores of a reward model (Bradley and Terry 1952; arXiv 2203.02155)."""
    _check_pairs(current, batch, "bradley_terry")
    margin = _difference(current)
    return -logsigmoid(margin), _measures(margin)


def _check_pairs(current: torch.Tensor, batch: Mapping[str, torch.Tensor], loss: str) -> None:
    if "sequence_ids" in batch or len(current) % 2:
        what = "is packed" if "sequence_ids" in batch else f"has {len(current)} sequences"
        raise ValueError(f"the loss {loss} needs a padded batch of pairs, chosen first, but this one {what}")


def _difference(values: torch.Tensor) -> torch.Tensor:
    """The chosen one's number without the rejected one's, (pairs,)."""
    return values[0::2] - values[1::2]


def _to_reference(current: torch.Tensor, batch: Mapping[str, torch.Tensor], loss: str) -> torch.Tensor:
    return current - needed(batch, "ref_logprobs", loss).detach()


def _sums(values: torch.Tensor, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.where(counted(batch), values, 0).sum(1)


def _means(values: torch.Tensor, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return _sums(values, batch) / counted(batch).sum(1).clamp(min=1)


def _measures(margin: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"margin": margin, "accuracy": (margin > 0).float()}
