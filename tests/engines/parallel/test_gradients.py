from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from run_training import whole
from tiny_models import Build, adamw, halving, ragged, sgd

from twinkle.engines import TransformersModel
from twinkle_engines.parallel.gradients import GradientSums

NUMBERS = [float("nan"), float("inf"), -float("inf")]


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_a_sum_of_short_numbers_is_that_of_wide_ones(kind: torch.dtype) -> None:
    short, wide = (torch.nn.Parameter(torch.zeros(3, dtype=one)) for one in (kind, torch.float32))
    sums = GradientSums([short, wide])
    for _ in range(3000):
        for parameter in (short, wide):
            (parameter * torch.tensor([1.0, 0.5, -0.25], dtype=parameter.dtype)).sum().backward()  # type: ignore[no-untyped-call]  # torch's own
        sums.add()
    assert sums.of([short])[0].tolist() == sums.of([wide])[0].tolist() == [3000, 1500, -750]
    sums.hand_over()
    assert short.grad is not None and short.grad.dtype == kind
    sums.forget()
    assert sums.all() == []


def weighted(logprobs: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return -logprobs * batch["weight"]


@pytest.mark.parametrize("way", ["rows", "packs", "calls"])
@pytest.mark.slow
def test_bfloat16_adds_up_as_float32(way: str) -> None:
    """One row counts as much as 256 of the others, which are lost one by one in a sum of 8 bits."""
    ids = torch.tensor([[2, 3, 4, 5, 6]] * 33)
    weight = torch.ones(ids.shape)
    weight[0] = 256
    batch = {"input_ids": ids, "labels": ids, "weight": weight}
    whole_batch = TransformersModel(Build("llama"), optimizer=sgd)
    whole_batch.forward_backward(batch, weighted)
    options: dict[str, Any] = {"max_tokens": 5} if way == "packs" else {"micro_batch_size": 1}
    model = TransformersModel(Build("llama"), optimizer=sgd, dtype="bfloat16", **options)
    for start in range(0, 33, 3 if way == "calls" else 33):
        stop = start + (3 if way == "calls" else 33)
        model.forward_backward({name: column[start:stop] for name, column in batch.items()}, weighted)
    assert model.step()["grad_norm"] == pytest.approx(whole_batch.step()["grad_norm"], rel=0.03)


@pytest.mark.parametrize("value", NUMBERS)
@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 1.0}, {"dtype": "bfloat16"}, {"compute_dtype": "bfloat16"}])
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
