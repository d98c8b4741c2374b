"""Steps: gradients that are no numbers, or 0 everywhere, are never a step that nobody notices."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from run_training import whole
from tiny_models import Build, adamw, halving, logprobs_of, ragged, sgd

from twinkle.engines import Rollouts, TransformersModel

NUMBERS = [float("nan"), float("inf"), -float("inf")]


@pytest.mark.parametrize("value", NUMBERS)
@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 1.0}, {"compute_dtype": "bfloat16"}])
def test_a_gradient_that_is_no_number_makes_no_step(
    value: float, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    def spoiled(logprobs: torch.Tensor, batch: Any) -> torch.Tensor:
        return -logprobs * torch.where(torch.arange(logprobs.numel()).view_as(logprobs) == 3, value, 1.0)

    model = TransformersModel(Build("llama"), optimizer=adamw, schedule=halving, micro_batch_size=2, **options)
    before = {name: whole(weight) for name, weight in model.weights().items()}
    batch = ragged(4, 1)
    batch["labels"] = batch["input_ids"]
    model.forward_backward(batch, spoiled)
    told = model.step()
    assert math.isnan(told["grad_norm"]) and told["skipped"] == 1.0 and told["lr"] == 0.01
    assert all(torch.equal(whole(weight), before[name]) for name, weight in model.weights().items())
    assert "not finite" in caplog.text
    with pytest.raises(ValueError, match="has no gradient"):
        model.step()
    model.forward_backward(batch)
    told = model.step()
    assert math.isfinite(told["grad_norm"]) and told["lr"] == 0.01 and "skipped" not in told


def test_ten_gradients_in_a_row_that_are_no_numbers_are_an_error() -> None:
    def scaled(logprobs: torch.Tensor, batch: Any, factor: float) -> torch.Tensor:
        return logprobs * factor

    model = TransformersModel(Build("llama"), optimizer=sgd)
    for attempt in range(12):
        model.forward_backward(ragged(2, 1), scaled, factor=1.0 if attempt == 1 else math.nan)
        if attempt == 11:
            with pytest.raises(FloatingPointError, match="10 steps in a row"):
                model.step()
        else:
            assert ("skipped" in model.step()) == (attempt != 1)


def test_a_gradient_of_0_is_said_once() -> None:
    model = TransformersModel(Build("llama"), optimizer=sgd)
    rows = Rollouts([[1, 2, 3], [4, 5, 6]], counts=[2], advantages=[0.0, 0.0])
    rows = rows.replace(logprobs=logprobs_of(model, rows))
    model.forward_backward(rows, "grpo")
    with pytest.warns(UserWarning, match="gradient is 0"):
        assert model.step()["grad_norm"] == 0
    model.forward_backward(rows, "grpo")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.step()


def test_parameters_that_are_trained_are_float32() -> None:
    with pytest.raises(ValueError, match="compute_dtype"):
        TransformersModel(Build("llama"), optimizer=sgd, dtype="bfloat16")
    reference = TransformersModel(Build("llama"), optimizer=None, dtype="bfloat16")
    assert {weight.dtype for weight in reference.weights().values()} == {torch.bfloat16}
    assert len(logprobs_of(reference, ragged(2, 1))) == 2
    with pytest.raises(ValueError, match="optimizer=None"):
        reference.forward_backward(ragged(2, 1))
    with pytest.raises(ValueError, match="optimizer=None"):
        reference.step()
