"""Optimizers and schedules: what a caller's functions make, checked for the model that they are made for."""

from __future__ import annotations

import inspect
import math
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from twinkle_engines.batches.given import called_with

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn
    from torch.optim.lr_scheduler import LRScheduler

_OF_SCHEDULES = ("step", "state_dict", "load_state_dict")


def check_makers(optimizer: object, schedule: object) -> None:
    """Raise for what makes no optimizer, or no schedule.

    Raises:
        TypeError: One is no function.
    """
    if not callable(optimizer):
        raise TypeError(
            "optimizer= makes the optimizer of the parameters that are trained, on each worker: use a function, as "
            f"in lambda parameters: torch.optim.AdamW(parameters, lr=1e-5), got a {type(optimizer).__name__}"
        )
    if schedule is not None and not callable(schedule):
        raise TypeError(
            "schedule= makes the learning rate's schedule of the optimizer, on each worker: use a function, as in "
            f"lambda optimizer: torch.optim.lr_scheduler.ConstantLR(optimizer), got a {type(schedule).__name__}"
        )
    called_with("the function of optimizer=", optimizer, "parameters")
    if schedule is not None:
        called_with("the function of schedule=", schedule, "optimizer")


def made_optimizer(make: Callable[[list[Any]], Optimizer], parameters: Sequence[nn.Parameter]) -> Optimizer:
    """The optimizer of some parameters.

    Args:
        make: Makes it.
        parameters: All that are trained.

    Raises:
        TypeError: Something else was made, or an optimizer whose steps need more than gradients.
        ValueError: It has parameters that are not among these, or a learning rate that is no finite number.
    """
    with _named("optimizer="):
        made: Any = make(list(parameters))
    if not isinstance(made, Optimizer):
        raise TypeError(
            f"the function of optimizer= returned a {type(made).__name__}: use one that returns an optimizer, as "
            "lambda parameters: torch.optim.AdamW(parameters, lr=1e-5) does"
        )
    _check_step(made, "optimizer")
    rate_of(made)
    own = {id(one) for one in parameters}
    held = [id(one) for group in made.param_groups for one in group["params"]]
    if strange := sum(one not in own for one in held):
        raise ValueError(
            f"the optimizer has {strange} parameters that are not the model's, which would not be trained: make it of "
            "the parameters that the function of optimizer= gets; those of a model before it was divided are others"
        )
    if left := len(own) - len({*held}):
        warnings.warn(
            f"the optimizer leaves out {left} of {len(own)} parameters that require a gradient: these stay as they "
            "are, and count in grad_norm; set requires_grad=False where this is meant",
            stacklevel=3,
        )
    return made


def made_schedule(make: Callable[[Optimizer], LRScheduler] | None, optimizer: Optimizer) -> LRScheduler | None:
    """The schedule of an optimizer; None without a function that makes one.

    Raises:
        TypeError: The function made something else, or a schedule whose steps need more than their number.
        ValueError: The schedule is of another optimizer.
    """
    if make is None:
        return None
    with _named("schedule="):
        made: Any = make(optimizer)
    if not all(callable(getattr(made, name, None)) for name in _OF_SCHEDULES):
        raise TypeError(
            f"the function of schedule= returned a {type(made).__name__}: use one that returns a schedule, as lambda "
            "optimizer: torch.optim.lr_scheduler.ConstantLR(optimizer) does"
        )
    _check_step(made, "schedule")
    if getattr(made, "optimizer", optimizer) is not optimizer:
        raise ValueError("the schedule is of another optimizer: make it of the one that the function of schedule= gets")
    return made  # type: ignore[no-any-return]  # it has the methods of one


@contextmanager
def _named(argument: str) -> Iterator[None]:
    """A call of a caller's function, whose errors say which it is."""
    try:
        yield
    except Exception as error:
        error.add_note(f"raised by the function of {argument}")
        raise


def rate_of(optimizer: Optimizer) -> float:
    """The learning rate of an optimizer's first group.

    Raises:
        ValueError: That of a group is no finite number at or above 0: a step would spoil the weights.
    """
    rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
    wrong = [rate for rate in rates if not (math.isfinite(rate) and rate >= 0)]
    if wrong:
        raise ValueError(
            f"the learning rate is {wrong[0]}, so a step would spoil the weights: use lr= and a schedule that are "
            "finite, and at or above 0"
        )
    return rates[0] if rates else 0.0


def _check_step(made: Any, what: str) -> None:
    """Raise where a step needs an argument, as a line search needs the loss again, and a plateau a metric.

    Raises:
        TypeError: It does.
    """
    every = inspect.signature(made.step).parameters.values()
    needed = [one.name for one in every if one.default is one.empty and one.kind in (0, 1, 3)]
    if needed:
        raise TypeError(
            f"{type(made).__name__}.step() needs {', '.join(needed)}, which step() of a model does not have: use "
            f"{'an optimizer' if what == 'optimizer' else 'a schedule'} whose steps need no argument, such as "
            f"{'torch.optim.AdamW' if what == 'optimizer' else 'torch.optim.lr_scheduler.CosineAnnealingLR'}"
        )
