"""Gradients since the last step, with what divides their sum; and the optimizer that makes steps of them."""

from __future__ import annotations

import inspect
import logging
import math
from typing import TYPE_CHECKING, Any

import torch

from twinkle_engines.models.parallel import are_finite, clip

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn
    from torch.optim import Optimizer

    from twinkle_engines.models.layout import ModelLayout
    from twinkle_engines.models.objective import Found

_log = logging.getLogger("twinkle.engines")
_SKIPS = 10


class Gradients:
    """The gradients of one model; all ranks call each method.

    Attributes:
        counted: What divides their sum; 0 where there are none.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], layout: ModelLayout) -> None:
        self._parameters, self._layout = parameters, layout
        self.counted = 0.0
        self._finite, self._unit, self._skipped = True, "", 0

    def check_unit(self, unit: str, name: str) -> None:
        """Raise for a loss that is a mean over something else than those before it."""
        if unit and self.counted and unit != self._unit:
            raise ValueError(
                f"gradients since the last step() are a mean over {self._unit}s, and {name} is one over {unit}s: give "
                "both the same normalize=, or make a step() between"
            )

    def note(self, found: Found) -> None:
        """Note what a batch has added."""
        self.counted += found.counted
        self._unit = found.unit or self._unit
        self._finite = self._finite and math.isfinite(found.loss)

    def forget(self) -> None:
        """Forget all."""
        for one in self._parameters:
            one.grad = None
        self.counted, self._finite = 0.0, True

    def clipped_norm(self, limit: float | None) -> float:
        """Make means of the sums, clip them, and return their norm before that, over the whole model."""
        gradients = [one.grad for one in self._parameters if one.grad is not None]
        for gradient in gradients:
            gradient.mul_(1 / self.counted)
        return clip(gradients, limit)

    def are_finite(self, norm: float) -> bool:
        """Whether all ranks can make a step; else the gradients are forgotten.

        Raises:
            FloatingPointError: They were not finite for the tenth time in a row, or the weights are not.
        """
        if not self._layout.max_over_all(float(not (self._finite and math.isfinite(norm)))):
            self._skipped = 0
            return True
        self.forget()
        self._skipped += 1
        if self._layout.max_over_all(float(not are_finite(self._parameters))):
            raise FloatingPointError(
                "weights are not finite: a step of the optimizer has made them so, with a gradient that was, as Adam's "
                "does with eps=0; use another optimizer, and load() a checkpoint"
            )
        if self._skipped >= _SKIPS:
            raise FloatingPointError(
                f"the gradient was not finite in {_SKIPS} steps in a row, and the weights are those before them: look "
                "for NaN or infinity in losses, advantages and weights, or use a smaller learning rate"
            )
        _log.warning("the gradient, or a loss, is not finite: no step is made (%d in a row)", self._skipped)
        return False


def optimizer_of(model: Any, make: Callable[..., Optimizer]) -> Optimizer:
    """The optimizer of what is trained; a parameter `named_parameters` of `make` is given (name, parameter) pairs."""
    named = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    wants_names = next(iter(inspect.signature(make).parameters), "") == "named_parameters"
    return make(named if wants_names else [one for _, one in named])


@torch.no_grad()
def move(model: Any, optimizer: Optimizer | None, device: torch.device | str) -> None:
    """Move parameters, buffers, gradients and the optimizer's state; the memory left behind is given back."""
    model.to(device)
    for state in () if optimizer is None else optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.dim():  # a count of steps stays where it is
                state[name] = value.to(device)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
