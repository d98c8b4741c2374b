"""The objective of a training: a loss by name or a function, what its mean counts, and a part's share of that mean."""

from __future__ import annotations

import inspect
import math
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, get_args

from torch import Tensor

from twinkle_engines.algorithms.losses import COMPARING, LOSSES, NORMALIZATIONS, SAMPLED, Normalization, total_and_count
from twinkle_engines.batches.given import called_with, fraction
from twinkle_mesh import check_known_names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinkle_engines.batches.padded import Padded
    from twinkle_engines.models.micro_batches import MicroBatch

    Loss: TypeAlias = Callable[[Tensor, Padded], Tensor]

_RANGES = {"low": (0.0, 1.0), "high": (0.0, math.inf), "beta": (0.0, sys.float_info.max)}
"""The least and the largest of each option of a loss by name."""


class Objective(NamedTuple):
    """A loss with its options.

    Attributes:
        name: Its name, for errors.
        function: From log-probabilities (sequences, tokens) and the batch to its values.
        unit: What its mean counts, as in `normalize=`: "token", "sequence" or "pair".
        compares: Whether it compares with log-probabilities that were computed without dropout; None where only the
            batch says.
        sampled: Whether it is an expectation over what was sampled; None where only the batch says.
    """

    name: str
    function: Loss
    unit: str
    compares: bool | None
    sampled: bool | None

    def share(self, logprobs: Tensor, part: MicroBatch) -> tuple[Tensor, float]:
        """A part's share of the mean: a sum of losses, and what to divide the sum of all parts by.

        Raises:
            Exception: What the loss raises.
            TypeError: It returns no tensor.
            ValueError: It returns another shape, or values that no gradient comes from.
        """
        if part.apart and self.unit == "pair":
            raise ValueError(
                f"{self.name} compares sequences that this model does not compute at once, because one changes the "
                "other; use pairs whose sequences are of one side of its border of lengths"
            )
        columns: Any = {**part.columns, **part.left} if part.left else part.columns  # a mark refuses every use
        values: Any = self.function(logprobs, columns)
        self._check(values, logprobs, part)
        if values.dim() == 1:
            return values.sum(), float(len(values))
        normalize: Any = self.unit
        total, count = total_and_count(values, part.columns, normalize)
        return total, float(count)

    def without_gradient(self) -> ValueError:
        """The error of values that no gradient comes from."""
        return ValueError(
            f"the loss {self.name} returned values without a gradient: compute them from its first argument, "
            "without detach() or no_grad()"
        )

    def _check(self, values: Any, logprobs: Tensor, part: MicroBatch) -> None:
        if not isinstance(values, Tensor):
            raise TypeError(f"the loss {self.name} returned {type(values).__name__}: it returns a tensor of values")
        if values.is_complex():
            raise TypeError(f"the loss {self.name} returned {values.dtype}: use real numbers")
        count = len(part.sequences)
        by_sequence = {(count,), (count // 2,)} if not part.apart else set()
        if values.shape != logprobs.shape and tuple(values.shape) not in by_sequence:
            raise ValueError(
                f"the loss {self.name} returned the shape {tuple(values.shape)} for log-probabilities of the shape "
                f"{tuple(logprobs.shape)}: one value for each token, of the same shape, or for each sequence or pair, "
                f"({count},) or ({count // 2},)"
            )
        if logprobs.requires_grad and not values.requires_grad:
            raise self.without_gradient()


def objective(
    loss: str | Callable[..., Tensor], normalize: Normalization | None, options: Mapping[str, object]
) -> Objective:
    """The loss of a name, or a function, with its options.

    Args:
        loss: A name, or a function.
        normalize: "token" or "sequence"; None for the loss's own: "token" for a function.
        options: Passed on to the loss.

    Raises:
        TypeError: The loss is neither a name nor a function, or an option of a loss by name is no number.
        ValueError: For an unknown name or way to add up, or another one than a loss of pairs has, or an option out of
            its range.
    """
    if not isinstance(loss, str) and not callable(loss):
        raise TypeError(
            f"loss is {loss!r:.60} of type {type(loss).__name__}: use a function, or one of "
            f"{', '.join(map(repr, LOSSES))}"
        )
    if isinstance(loss, str) and loss not in LOSSES:
        raise ValueError(f"loss={loss!r} is none of {', '.join(map(repr, LOSSES))}, nor a function; use one of these")
    if repr(normalize) not in map(repr, (None, *get_args(Normalization))):  # an array would be compared by element
        raise ValueError(
            f"normalize={normalize!r:.60} is none of {', '.join(map(repr, get_args(Normalization)))}; use one"
        )
    chosen: Any = LOSSES[loss] if isinstance(loss, str) else loss
    code = getattr(chosen, "__code__", None)
    if code is not None and not code.co_flags & inspect.CO_VARKEYWORDS:
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount][2:]
        what = f"the loss {loss!r}" if isinstance(loss, str) else f"the loss {chosen.__name__}"
        check_known_names(what, options, [*names, "normalize", "dropout"])
    if not isinstance(loss, str):
        called_with("the function of loss=", partial(loss, **options), "log-probabilities", "batch")
        name = getattr(loss, "__name__", type(loss).__name__)
        return Objective(name, partial(loss, **options), normalize or "token", None, None)
    bounded = {name: _bounded(f"{name} of {loss}", value, *_RANGES[name]) for name, value in options.items()}
    own = NORMALIZATIONS[loss]
    if own == "pair" and normalize is not None:
        raise ValueError(f"loss={loss!r} is a mean over pairs, so normalize={normalize!r} has no meaning: leave it out")
    named: Callable[..., Tensor] = LOSSES[loss]
    return Objective(loss, partial(named, **bounded), normalize or own, loss in COMPARING, loss in SAMPLED)


def _bounded(name: str, value: object, least: float, most: float) -> float:
    """A number of a range.

    Raises:
        TypeError: It is no number.
        ValueError: It is out of the range.
    """
    found = fraction(name, value)
    if not least <= found <= most:
        raise ValueError(f"{name} is in [{least:g}, {most:g}], got {found}; use a number of this range")
    return found
