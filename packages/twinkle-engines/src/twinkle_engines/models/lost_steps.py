"""Lost steps: parameters of a short type that a step leaves as they are, because it is below half of their last bit."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from twinkle_engines.parallel.gradients import GradientSums

_SAMPLE = 1 << 14
"""Elements of a parameter that are looked at, at most."""
_SHARE = 0.5
"""The share of weights with a gradient that a step leaves as they are, from which on it is reported."""


class LostSteps:
    """Looks whether steps change the weights: at the first step, the second, the fourth and so on, until it has warned.

    Args:
        parameters: This rank's part of all parameters that are trained; those of float32 and more are left out.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._short = [one for one in parameters if one.dtype.itemsize < torch.float32.itemsize]
        self._steps = 0
        self._warned = not self._short

    def before(self, sums: GradientSums, rate: float) -> list[tuple[nn.Parameter, Tensor, Tensor]]:
        """Some weights of each parameter, and which of them have a gradient; none at steps that are not looked at.

        Args:
            sums: The gradients of this step.
            rate: Its learning rate; without one, as at the start of a warm-up, nothing is to change.
        """
        self._steps += 1
        if self._warned or rate == 0 or self._steps & (self._steps - 1):
            return []
        found = []
        for one in self._short:
            for gradient in sums.of([one]):
                found.append((one, _some(one).clone(), _some(gradient) != 0))
        return found

    def after(self, before: Sequence[tuple[nn.Parameter, Tensor, Tensor]], rate: float) -> None:
        """Warn, once, where at least half of the weights are as they were.

        Args:
            before: What `before` returned.
            rate: The learning rate of the step.
        """
        counts = [(int((_some(one) == old)[moves].sum()), int(moves.sum())) for one, old, moves in before]
        same, looked = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
        if not looked or same < _SHARE * looked:
            return
        self._warned = True
        kind = str(self._short[0].dtype).removeprefix("torch.")
        warnings.warn(
            f"step {self._steps} at the learning rate {rate:g} left {same} of {looked} {kind} weights with a gradient "
            f"as they were ({same / looked:.1%}): changes below half of their last bit are lost; use "
            f'dtype="float32" with compute_dtype="{kind}", or a larger learning rate',
            stacklevel=2,
        )


def _some(values: Tensor) -> Tensor:
    """Elements of this rank's part, evenly spread."""
    own = values.detach()
    flat = (own.to_local() if isinstance(own, DTensor) else own).flatten()
    return flat[:: max(1, len(flat) // _SAMPLE)]
