"""A step that is too small for the type of the weights is told."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from tiny_models import Build, ragged

from twinkle.engines import TransformersModel


def adamw(rate: float) -> Any:
    return lambda parameters: torch.optim.AdamW(parameters, lr=rate)


def unchanged(model: Any, before: dict[str, torch.Tensor]) -> float:
    after = {name: one.clone() for name, one in model.weights().items()}
    same = sum(int((one == before[name]).sum()) for name, one in after.items())
    return float(same / sum(one.numel() for one in after.values()))


@pytest.mark.parametrize("kind", ["bfloat16"])
def test_a_step_that_changes_few_weights_warns_once_with_the_numbers(kind: str) -> None:
    model = TransformersModel(Build("llama"), optimizer=adamw(1e-6), dtype=kind)
    before = {name: one.clone() for name, one in model.weights().items()}
    model.forward_backward(ragged(4, 1))
    with pytest.warns(UserWarning, match=r"learning rate 1e-06 left .* bfloat16 weights .* compute_dtype"):
        model.step()
    assert unchanged(model, before) > 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            model.forward_backward(ragged(4, 1))
            model.step()


@pytest.mark.parametrize(("dtype", "rate"), [("bfloat16", 1e-2), ("float32", 1e-6), ("bfloat16", 0.0)])
def test_steps_that_change_weights_are_silent(dtype: str, rate: float) -> None:
    model = TransformersModel(Build("llama"), optimizer=adamw(rate), dtype=dtype)
    for _ in range(2):
        model.forward_backward(ragged(4, 1))
        model.step()
