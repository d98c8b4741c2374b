"""What the functions of optimizer= and schedule= make is for the model that they are called for, or refused by name."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from tiny_models import Build, halving, ragged, sgd

from twinkle.engines import TransformersModel
from twinkle_engines.models.optimizers import made_optimizer, made_schedule

OPTIM: Any = torch.optim
SCHEDULES: Any = torch.optim.lr_scheduler
STEPS = {  # those whose steps need nothing but gradients
    "SGD": {},
    "Adam": {},
    "AdamW": {"fused": True},
    "RMSprop": {},
    "Adagrad": {},
    "Adamax": {},
    "NAdam": {},
    "RAdam": {},
    "Adadelta": {},
    "Adafactor": {},
}


def parameters() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.ones(3, 2)), torch.nn.Parameter(torch.ones(2))]


def given_back(made: Any, _: object) -> Any:
    return made


@pytest.mark.parametrize("name", STEPS)
def test_optimizers_of_torch_are_taken(name: str) -> None:
    own = parameters()
    made = made_optimizer(lambda given: getattr(OPTIM, name)(given, lr=0.1, **STEPS[name]), own)
    for schedule in (SCHEDULES.StepLR(made, 1), SCHEDULES.CosineAnnealingLR(made, 4), halving(made)):
        assert made_schedule(partial(given_back, schedule), made) is schedule
    assert made_schedule(None, made) is None


@pytest.mark.parametrize("rate", [float("nan"), float("inf")])
def test_a_rate_that_is_no_number_reaches_no_weights(rate: float) -> None:
    with pytest.raises(ValueError, match="learning rate"):
        made_optimizer(lambda given: torch.optim.SGD(given, lr=rate), parameters())

    def schedule(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step < 1 else rate)

    model = TransformersModel(Build("qwen2"), optimizer=sgd, schedule=schedule)
    for _ in range(2):
        model.forward_backward(ragged(2, 1))
        if _ == 0:
            model.step()
    with pytest.raises(ValueError, match="learning rate"):
        model.step()
    assert all(row.isfinite().all() for row in model.logprobs(ragged(2, 1)))


def test_optimizers_that_would_train_something_else_are_refused() -> None:
    own, other = parameters(), parameters()
    for wrong in (other, [*own, *other], other[:1]):
        with pytest.raises(ValueError, match="not the model's"):
            made_optimizer(partial(given_back, sgd(wrong)), own)
    with pytest.warns(UserWarning, match="leaves out 1 of 2"):
        made_optimizer(lambda given: sgd(given[:1]), own)
    with pytest.raises(TypeError, match="closure"):
        made_optimizer(OPTIM.LBFGS, own)
    nothing: Any = lambda given: None  # noqa: E731  an argument without a name of its own
    with pytest.raises(TypeError, match="NoneType"):
        made_optimizer(nothing, own)


def test_schedules_that_would_not_go_on_are_refused() -> None:
    made, other = sgd(parameters()), sgd(parameters())
    nothing: Any = lambda given: None  # noqa: E731  an argument without a name of its own
    with pytest.raises(TypeError, match="NoneType"):
        made_schedule(nothing, made)
    with pytest.raises(TypeError, match="metrics"):
        made_schedule(SCHEDULES.ReduceLROnPlateau, made)
    with pytest.raises(ValueError, match="another optimizer"):
        made_schedule(lambda _: halving(other), made)


def test_a_model_asks_what_was_made() -> None:
    built = Build("qwen2")()
    with pytest.raises(ValueError, match="not the model's"):
        TransformersModel(Build("qwen2"), optimizer=lambda _: sgd(list(built.parameters())))
    model = TransformersModel(Build("qwen2"), optimizer=sgd, schedule=halving)
    rates = []
    for seed in range(2):
        model.forward_backward(ragged(2, seed))
        rates.append(model.step()["lr"])
    assert rates == [1.0, 0.5]
