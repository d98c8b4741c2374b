"""What a model minimizes: a loss by name or a function, and a part's share of its mean."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias, get_args

from twinkle.engines.losses import LOSSES, Normalization, total_and_count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from twinkle.engines.padded import Padded

    Loss: TypeAlias = Callable[[Tensor, Padded], Tensor]


def loss_function(loss: str | Callable[..., Tensor], options: Mapping[str, object]) -> Loss:
    """The loss of a name, or a function as it is, with its options.

    Raises:
        ValueError: For an unknown name.
    """
    if not isinstance(loss, str):
        return partial(loss, **options)
    if loss not in LOSSES:
        raise ValueError(f"loss={loss!r} is none of {', '.join(map(repr, LOSSES))}, nor a function")
    named: Callable[..., Tensor] = LOSSES[loss]
    return partial(named, **options)


def check_normalize(normalize: str) -> None:
    """Raise for an unknown way to add up tokens."""
    if normalize not in get_args(Normalization):
        raise ValueError(f"normalize={normalize!r} is none of {', '.join(map(repr, get_args(Normalization)))}")


def share(values: Tensor, batch: Padded, normalize: Normalization) -> tuple[Tensor, float]:
    """A part's share of a mean: a sum of losses, and what to divide the sum of all parts by.

    Args:
        values: The loss of each token (sequences, tokens), or of each pair.
        batch: The part.
        normalize: "token" or "sequence"; pairs are counted as they are.
    """
    if values.dim() == 1:
        return values.sum(), float(len(values))
    total, count = total_and_count(values, batch, normalize)
    return total, float(count)
