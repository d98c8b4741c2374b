"""Gradients since the last step, with what divides their sum; warnings of steps that learn nothing; the optimizer."""

from __future__ import annotations

import inspect
import logging
import math
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from twinkle_engines.models.parallel import clip

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn
    from torch.optim import Optimizer

    from twinkle_engines.batches.micro_batches import MicroBatch
    from twinkle_engines.models.layout import ModelLayout
    from twinkle_engines.models.objective import Found, Objective

_log = logging.getLogger("twinkle.engines")
_STEPS = 10
"""Steps after which adapters have changed, and without a finite gradient at most."""


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
            FloatingPointError: They were not finite for the tenth time in a row.
        """
        if not self._layout.max_over_all(float(not (self._finite and math.isfinite(norm)))):
            self._skipped = 0
            return True
        self.forget()
        self._skipped += 1
        if self._skipped >= _STEPS:
            raise FloatingPointError(f"the gradient was not finite in {_STEPS} steps in a row: look at the losses")
        _log.warning("the gradient, or a loss, is not finite: no step is made (%d in a row)", self._skipped)
        return False


class Notices:
    """Warnings of one model, each once, on the first rank."""

    def __init__(self, layout: ModelLayout, adapters: Sequence[torch.Tensor]) -> None:
        self._layout, self._adapters = layout, adapters
        self._said: set[str] = set()
        self._begun = self._sum()
        self._steps = 0

    def say(self, what: str) -> None:
        """Warn once."""
        if self._layout.is_first and what not in self._said:
            warnings.warn(what, stacklevel=4)
        self._said.add(what)

    def batch(self, found: Found, aim: Objective, parts: Sequence[MicroBatch], has_mask: bool) -> None:
        """Say what is wrong with a batch of all ranks, of which the first one looks at its part."""
        columns = [part.columns for part in parts if part.sequences]
        if not found.tokens and any(length > 1 for part in parts for length in part.lengths):
            self.say("no token of this batch counts, so nothing is learnt from it: look at its labels, or its mask")
        if columns and all(map(_is_shifted, columns)):
            self.say(
                "all labels are the ids of the next tokens: they were shifted before, and are shifted again here; use "
                "labels that stand at their own ids"
            )
        given = [one["logprobs"][one["mask"]] for one in columns if aim.is_sampled and "logprobs" in one]
        if not has_mask and any(bool((one == 0).any()) for one in given):
            self.say(
                "log-probabilities of exactly 0 count, and there is no mask, so the prompt is trained as well: give "
                "Rollouts a mask that is 1 at what was sampled"
            )

    def step(self, norm: float) -> None:
        """Say what is wrong with a step that is made next."""
        if norm == 0:
            self.say(
                "the whole gradient is 0, so a step learns nothing: rewards are equal in each group, a group has one "
                "answer, no reward function votes, or the mask has no tokens of the model"
            )
        self._steps += 1
        if self._adapters and self._steps == _STEPS + 1 and not self._layout.max_over_all(self._sum() - self._begun):
            self.say(
                f"the adapters are after {_STEPS} steps what they were: look at lora_alpha, which scales them, at the "
                "learning rate, and at whether the optimizer has the parameters that it was given"
            )

    @torch.no_grad()
    def _sum(self) -> float:
        parts = [one.to_local() if isinstance(one, DTensor) else one for one in self._adapters]
        return sum(float(one.double().abs().sum()) for one in parts)


def _is_shifted(columns: dict[str, Any]) -> bool:
    """Whether what counts is predicted as the id of the next token, and not as its own."""
    ids, targets, counted = columns["input_ids"][:, :-1], columns["targets"][:, :-1], columns["mask"][:, :-1]
    is_next = bool((targets == columns["input_ids"][:, 1:])[counted].all()) and int(counted.sum()) > 3
    return is_next and bool((targets != ids)[counted].any())


def set_mode(optimizer: Any, mode: str) -> None:
    """Call `train` or `eval` of an optimizer that has both, as schedule-free ones: its weights differ between them."""
    if callable(getattr(optimizer, "train", None)) and callable(getattr(optimizer, "eval", None)):
        getattr(optimizer, mode)()


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
