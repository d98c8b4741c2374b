"""Offline losses: of sequences that were given, in pairs or alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import logsigmoid

from twinkle_engines.algorithms.losses.counting import counted, needed

if TYPE_CHECKING:
    from collections.abc import Mapping


def cross_entropy(logprobs: torch.Tensor, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """-log p of each token.

    Args:
        logprobs: Of each token, of the shape of the batch.
        batch: Not read; see `counted` for what counts.
    """
    return -logprobs


def dpo(logprobs: torch.Tensor, batch: Mapping[str, torch.Tensor], beta: float = 0.1) -> torch.Tensor:
    """-log sigmoid(beta ((log p - log q)(chosen) - (log p - log q)(rejected))), q the reference, log of the sequence.

    DPO (Rafailov et al. 2023, arXiv 2305.18290).

    Args:
        logprobs: log p of each token, [2 pairs, tokens]; the chosen sequence of each pair stands before the rejected.
        batch: A padded one, with `ref_logprobs`.
        beta: How strongly the model is held to the reference.

    Returns:
        One value for each pair, [pairs].

    Raises:
        ValueError: Sequences are not in pairs, the batch is packed, or it has no `ref_logprobs`.
    """
    if "sequence_ids" in batch or len(logprobs) % 2:
        what = "is packed" if "sequence_ids" in batch else f"has {len(logprobs)} sequences"
        raise ValueError(f"the loss dpo needs a padded batch of pairs, chosen first, but this one {what}")
    ratio = torch.where(counted(batch), logprobs - needed(batch, "ref_logprobs", "dpo").detach(), 0).sum(1)
    return -logsigmoid(beta * (ratio[0::2] - ratio[1::2]))
