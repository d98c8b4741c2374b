"""The forward pass of a language model: the log-probability of each token after those before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from twinkle_engines.batches.padding import TEMPERATURES

if TYPE_CHECKING:
    from torch import Tensor

    from twinkle_engines.batches.padded import Padded


def token_logprobs(model: Any, batch: Padded) -> Tensor:
    """Log-probabilities (sequences, tokens) of the batch's targets, at its temperatures, in float32.

    The first token's is 0. Values at padding, and at the first tokens of a pack's further sequences, mean nothing.
    """
    names = ("input_ids", "attention_mask", "position_ids")  # the positions of packs alone, which have no mask
    given = {name: batch[name] for name in names if name in batch}
    if "attention_mask" in given:  # a row without any token sees its first padding: attention to nothing is no number
        mask = given["attention_mask"].bool()
        mask = torch.cat([mask[:, :1] | ~mask.any(1, keepdim=True), mask[:, 1:]], dim=1)
        given["attention_mask"] = mask.long()  # as tokenizers make it; some models calculate with it
    logits = model(**given, use_cache=False).logits[:, :-1]
    if TEMPERATURES in batch:
        heat = batch[TEMPERATURES][:, 1:, None]
        logits = logits / heat.to(torch.promote_types(logits.dtype, torch.float32))
    return functional.pad(chosen(logits, batch["targets"][:, 1:]), (1, 0))


def chosen(logits: Tensor, targets: Tensor) -> Tensor:
    """Log-probabilities of targets (...) under logits (..., vocabulary), in at least float32."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return wide.gather(-1, targets[..., None])[..., 0] - wide.logsumexp(dim=-1)
