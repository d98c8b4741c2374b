"""Columns of losses: what does not count changes nothing, and what cannot be read is named with what is there."""

from __future__ import annotations

import math

import pytest
import torch

from twinkle.engines import Rollouts
from twinkle_engines.algorithms.losses import LOSSES, counted, total_and_count

READS = {
    **{name: loss.reads for name, loss in LOSSES.items() if "teacher_ids" not in loss.reads and loss.head == "lm"},
    "grpo": ("logprobs", "advantages", "ref_logprobs"),
    "value": ("returns", "values"),
}
"""The columns by token of each loss of one number by token."""
MORE: dict[str, dict[str, float]] = {"grpo": {"beta": 0.1}, "value": {"clip": 0.2}, "ppo": {"dual": 1.1}}


def of_columns(size: tuple[int, int]) -> dict[str, torch.Tensor]:
    return {column: torch.randn(size) for column in sorted({one for reads in READS.values() for one in reads})}


@pytest.mark.parametrize("wrong", [math.nan, -math.inf, 1e30])
@pytest.mark.parametrize("name", READS)
def test_what_stands_at_tokens_that_do_not_count_changes_nothing(name: str, wrong: float) -> None:
    torch.manual_seed(1)
    mask = torch.rand(4, 7) < 0.6
    columns, given = of_columns((4, 7)), torch.randn(4, 7) - 2

    def computed(filler: float) -> tuple[torch.Tensor, torch.Tensor]:
        batch = {column: torch.where(mask, values, filler) for column, values in columns.items()}
        batch |= {"input_ids": torch.ones(4, 7), "attention_mask": torch.ones(4, 7), "mask": mask}
        logprobs = given.clone().requires_grad_()
        values, _ = LOSSES[name].function(logprobs, batch, **MORE.get(name, {}))
        total = values.sum() if values.dim() == 1 else total_and_count(values, batch, "sequence")[0]
        return total.detach(), torch.autograd.grad(total, logprobs)[0]

    for right, other in zip(computed(0.0), computed(wrong), strict=True):
        assert torch.equal(right, other)


@pytest.mark.parametrize("name", READS)
def test_a_column_is_there_by_token_and_finite(name: str) -> None:
    columns = of_columns((4, 4))
    batch = {"input_ids": torch.ones(4, 4), "attention_mask": torch.ones(4, 4), **columns}
    options = MORE.get(name, {})
    for column in READS[name]:
        values = columns[column]
        for other in (values[:, 0], values[:1], values[:, :1], values[None], values.sum()):
            with pytest.raises(ValueError, match=rf"column {column} by token"):
                LOSSES[name].function(torch.randn(4, 4), {**batch, column: other}, **options)
        with pytest.raises(ValueError, match=f"column {column} has inf"):
            LOSSES[name].function(torch.randn(4, 4), {**batch, column: torch.full((4, 4), math.inf)}, **options)
        del (lacking := dict(batch))[column]
        with pytest.raises(KeyError, match=f"needs the column {column}, and the batch has input_ids"):
            LOSSES[name].function(torch.randn(4, 4), lacking, **options)


@pytest.mark.parametrize("name", READS)
def test_a_token_whose_ratio_overflows_gives_finite_losses_and_gradients(name: str) -> None:
    batch = Rollouts([[1, 2, 3], [1, 2]], counts=[2]).pad()
    given = torch.tensor([[0.0, -1.0, -150.0], [0.0, -2.0, 0.0]])
    batch |= {column: torch.where(batch["attention_mask"] > 0, given - 200, 0) for column in READS[name]}
    values = given.requires_grad_()
    losses, _ = LOSSES[name].function(values, batch, **MORE.get(name, {}))
    assert losses.isfinite().all() and torch.autograd.grad(losses.sum(), values)[0].isfinite().all()


def test_tokens_that_count_are_written_by_the_model_and_predicted() -> None:
    rollouts = Rollouts([[1, 2, 3], [4, 5]], mask=[[1, 1, 0], [1, 1]])
    want = {"right": [[0, 1, 0], [0, 1, 0]], "left": [[0, 1, 0], [0, 0, 1]]}
    for side in ("left", "right"):
        batch = rollouts.pad(side)
        assert counted(batch).int().tolist() == want[side]
        del batch["position_ids"]
        assert counted(batch).int().tolist() == want[side]
    assert counted(rollouts.pack(5)[0]).int().tolist() == [[0, 1, 0, 0, 1]]
