"""What a model minimizes: a loss for each token, and how the tokens of a batch are added up."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from twinkle.engines.padded import Padded

    TokenLoss: TypeAlias = Callable[[Tensor, Padded], Tensor]

Normalize: TypeAlias = Literal["token", "sequence"]


def loss_function(loss: str | Callable[..., Tensor], options: Mapping[str, object]) -> TokenLoss:
    """The loss of a name, or a function as it is, with its options.

    Raises:
        ValueError: For an unknown name.
    """
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise ValueError(f"loss={loss!r} is none of {', '.join(map(repr, LOSSES))}, nor a function")
        loss = LOSSES[loss]
    return partial(loss, **options)


def check_normalize(normalize: str) -> None:
    """Raise for an unknown way to add up tokens."""
    if normalize not in get_args(Normalize):
        raise ValueError(f"normalize={normalize!r} is none of {', '.join(map(repr, get_args(Normalize)))}")


def share(values: Tensor, mask: Tensor, normalize: Normalize) -> tuple[Tensor, float]:
    """This part's share of a mean: a sum of losses, and what to divide the sum of all parts by.

    Args:
        values: Loss of each token (sequences, tokens).
        mask: The tokens that count.
        normalize: "token" adds up tokens; "sequence" adds up the means of the sequences in which a token counts.
    """
    counted = torch.where(mask, values, 0.0)
    if normalize == "token":
        return counted.sum(), float(mask.sum())
    lengths = mask.sum(dim=1)
    return (counted.sum(dim=1) / lengths.clamp(min=1)).sum(), float((lengths > 0).sum())


def cross_entropy(logprobs: Tensor, batch: Padded) -> Tensor:
    """Negative log-likelihood of each token: -log p(y_t | y_<t)."""
    return -logprobs


LOSSES: dict[str, Callable[..., Tensor]] = {"cross_entropy": cross_entropy}
