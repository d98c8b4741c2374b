"""Heads of one number, against plain torch: a linear map of the last hidden states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from peft import LoraConfig
from tiny_models import Build, logprobs_of, sgd
from torch.testing import assert_close
from transformers import AutoModelForSequenceClassification

from twinkle.engines import Rollouts, TransformersModel

if TYPE_CHECKING:
    from pathlib import Path

IDS = [[3, 5, 7, 9, 2], [3, 5], [2, 4, 6, 1, 1, 8, 9], [7]]
MASK = [[0, 0, 1, 1, 1], [0, 1], [0, 1, 1, 1, 0, 1, 1], [1]]
GOALS = [1.0, -1.0, 0.5, 2.0]
ROWS = Rollouts(IDS, MASK, returns=[[goal] * len(ids) for goal, ids in zip(GOALS, IDS, strict=True)]).with_column(
    "goal", GOALS, by="sequence"
)


def distance(numbers: torch.Tensor, batch: Any) -> Any:
    """The squared distance from what a column says, with a measure."""
    wanted = batch["goal"] if numbers.dim() == 1 else batch["returns"]
    return (numbers - wanted) ** 2, {"mean": numbers}


class PlainHead:
    """A body and a linear map, one sequence at a time."""

    def __init__(self, family: str) -> None:
        self.body = Build(family)().model
        self.weight = torch.zeros(1, 32, requires_grad=True)

    def numbers(self, kind: str, ids: list[int]) -> torch.Tensor:
        found = self.body(input_ids=torch.tensor([ids])).last_hidden_state[0] @ self.weight[0]
        return found[-1:] if kind == "score" else torch.cat([torch.zeros(1), found[:-1]])

    def step(self, kind: str) -> tuple[float, float]:
        losses = []
        for ids, mask, goal in zip(IDS, MASK, GOALS, strict=True):
            found = self.numbers(kind, ids)
            counted = torch.tensor([1] if kind == "score" else [0, *mask[1:]]).bool()
            losses.append((found - goal)[counted] ** 2)
        loss = torch.cat(losses).mean()
        parameters = [*self.body.parameters(), self.weight]
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for one, gradient in zip(parameters, gradients, strict=True):
                one -= 0.1 * gradient
        norm = torch.stack([one.norm() for one in gradients]).norm()
        return loss.item(), norm.item()


def slow(parameters: list[Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


@pytest.mark.parametrize("options", [{}, {"micro_batch_size": 1}, {"max_tokens": 8}])
@pytest.mark.parametrize(("kind", "family"), [("value", "llama"), ("score", "qwen2"), ("score", "llama")])
def test_a_head_of_one_number_makes_the_steps_of_plain_torch(kind: Any, family: str, options: dict[str, Any]) -> None:
    model, plain = TransformersModel(Build(family), head=kind, optimizer=slow, **options), PlainHead(family)
    for _ in range(3):
        loss, norm = plain.step(kind)
        told = model.forward_backward(ROWS, distance)
        assert told["loss"] == pytest.approx(loss, rel=1e-4)
        assert model.step()["grad_norm"] == pytest.approx(norm, rel=1e-4)
    for ids, row in zip(IDS, logprobs_of(model, ROWS), strict=True):
        right = plain.numbers(kind, ids).detach()
        assert_close(row[-len(right) :], right, rtol=1e-3, atol=1e-5)
        assert kind == "value" or not row[:-1].any()
    scored = model.annotate(ROWS, "rewards")
    assert scored.sequence_rewards().tolist() == [float(row.sum()) for row in logprobs_of(model, ROWS)]


@pytest.mark.parametrize("kind", ["value", "score"])
def test_a_head_of_one_number_is_written_and_read_by_transformers_names(tmp_path: Path, kind: Any) -> None:
    Build("qwen2")().save_pretrained(tmp_path / "lm")
    model = TransformersModel(tmp_path / "lm", head=kind, optimizer=slow)
    assert all(not row.any() for row in logprobs_of(model, ROWS))  # it begins at 0
    model.forward_backward(ROWS, distance)
    model.step()
    model.save_pretrained(tmp_path / "own")
    right = logprobs_of(model, ROWS)
    for own, row in zip(
        logprobs_of(TransformersModel(tmp_path / "own", head=kind, optimizer=None), ROWS), right, strict=True
    ):
        assert torch.equal(own, row) and (len(row) < 2 or row.any())
    if kind == "score":
        theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "own", num_labels=1)
        with torch.no_grad():
            for ids, row in zip(IDS, right, strict=True):
                assert_close(theirs(input_ids=torch.tensor([ids])).logits[0], row[-1:], rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft reads it
def test_a_head_of_one_number_is_trained_with_adapters() -> None:
    lora = LoraConfig(r=4, target_modules=["q_proj"])
    model = TransformersModel(Build("llama"), head="value", lora=lora, optimizer=slow)
    before = model.forward_backward(ROWS, distance)["loss"]
    model.step()
    assert model.evaluate_loss(ROWS, distance)["loss"] < before
    assert any("lm_head" in name for name in model.weights()) and any("lora_A" in name for name in model.weights())


def test_a_loss_of_log_probabilities_and_another_head_are_errors() -> None:
    with pytest.raises(ValueError, match="head='values' is none of"):
        TransformersModel(Build("llama"), head="values", optimizer=sgd)  # type: ignore[arg-type]  # what is tested
    model = TransformersModel(Build("llama"), head="value", optimizer=sgd)
    for loss in ("cross_entropy", lambda values, batch, entropies: values):
        with pytest.raises(ValueError, match="reads log-probabilities"):
            model.forward_backward(ROWS, loss)
