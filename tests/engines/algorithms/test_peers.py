"""Numbers that verl's and TRL's own functions gave for the same columns; docs/algorithms.md has the differences.

verl b178a3cd, verl/trainer/ppo/core_algos.py: compute_policy_loss_vanilla, _gspo and _cispo, compute_value_loss,
agg_loss with kl_penalty_forward "k3", and the estimators of advantages (gamma 0.9, lam 0.8). TRL f2cd5771: cpo_loss
("simpo"), odds_ratio_loss, generalized_jsd_loss, and the formulas "sigmoid" and "ipo" of dpo_trainer.py. Both are run
on the columns of `column`, float64: a loss, and the first four numbers of its gradient.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from twinkle.engines import Rollouts, advantages
from twinkle_engines.algorithms.losses import LOSSES, average

LENGTHS = [5, 3, 4, 2]
PEERS: dict[str, Any] = json.loads(Path(__file__).with_name("peers.json").read_text())
MASK = torch.arange(5) < torch.tensor(LENGTHS)[:, None]
IDS = [[0] * (length + 1) for length in LENGTHS]
REWARDS = [0.5, -1.0, 2.0, 0.25]


def column(step: float, shift: float = 0.0) -> torch.Tensor:
    return torch.sin(torch.arange(1, 21, dtype=torch.float64) * step).view(4, 5) + shift


def batch(**columns: torch.Tensor) -> dict[str, torch.Tensor]:
    """A batch with one token of a prompt before the answers."""
    before = torch.zeros(4, 1)
    made = {name: torch.cat([before, one], 1) for name, one in columns.items()}
    there = torch.cat([before == 0, MASK], 1)
    return {"input_ids": torch.zeros(4, 6).long(), "attention_mask": there.long(), **made}


@pytest.mark.parametrize("name", PEERS["loss"])
def test_losses_and_gradients_of_verl(name: str) -> None:
    options, (right, *gradient) = PEERS["loss"][name]
    by_sequence = torch.tensor([0.5, -1.0, 2.0, -0.25])[:, None].expand(4, 5)
    columns = batch(
        logprobs=column(2.1, -1.5),
        ref_logprobs=column(0.7, -1.5),
        advantages=by_sequence if name == "gspo" else column(3.7),
        returns=column(5.3),
        values=column(4.1),
    )
    given = (column(6.1) if name == "value" else column(1.3, -1.5)).requires_grad_()
    values, _ = LOSSES[name].function(torch.cat([torch.zeros(4, 1), given], 1), columns, **options)
    normalize: Any = LOSSES[name].normalize
    loss = average(values, columns, normalize)
    assert float(loss.detach()) == pytest.approx(right, rel=1e-5)
    found = torch.autograd.grad(loss, given)[0].flatten()[:4].tolist()
    assert found == pytest.approx(gradient, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("name", PEERS["pairs"])
def test_losses_of_pairs_of_trl(name: str) -> None:
    columns = batch(ref_logprobs=column(0.7, -1.5))
    given = column(1.3, -1.5 if name in ("dpo", "ipo") else -2.5)
    values, _ = LOSSES[name].function(torch.cat([torch.zeros(4, 1), given], 1), columns)
    assert values.tolist() == pytest.approx(PEERS["pairs"][name], rel=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "right"),
    [
        ("forward_kl", {}, 0.42490321085015387),
        ("reverse_kl", {}, 0.4100181320070196),
        ("jsd", {"beta": 0.3}, 0.08251786174283951),
    ],
)
def test_divergences_of_trl(name: str, options: dict[str, float], right: float) -> None:
    student, teacher = (column(step).log_softmax(-1)[None] for step in (1.3, 2.9))
    columns = {"input_ids": torch.zeros(1, 5).long(), "mask": torch.ones(1, 5)}
    tops = {"teacher_ids": torch.zeros(1, 5, 5).long(), "teacher_top": torch.cat([teacher[:, :1], teacher], 1)}
    top = torch.cat([student[:, :1], student], 1)
    values, _ = LOSSES[name].function(torch.zeros(1, 5), {**columns, **tops}, top_logprobs=top, **options)
    assert float(values[0, 1:].mean()) == pytest.approx(right, rel=1e-5)


@pytest.mark.parametrize("how", PEERS["by_token"])
def test_advantages_of_verl(how: Any) -> None:
    mask = [[0] + [1] * length for length in LENGTHS]
    values = [[0.0, *column(4.1)[i, :length].tolist()] for i, length in enumerate(LENGTHS)]
    rollouts = Rollouts(IDS, mask, rewards=REWARDS, counts=[2, 2], values=values)
    every: dict[str, Any] = {
        "remax": {"baselines": [0.3, 0.7]},
        "reinforce++": {"gamma": 0.9},
        "gae": {"gamma": 0.9, "lam": 0.8},
    }
    made = advantages(rollouts, how, **every.get(how, {}))
    found = torch.cat([one[1:] for one in made.column("advantages")])
    if how in ("reinforce++", "reinforce++baseline", "gae"):
        found = found * (13 / 14) ** 0.5  # verl's spread has n - 1 tokens
    assert found.tolist() == pytest.approx(PEERS["by_token"][how], abs=2e-4)
    if how == "gae":
        assert torch.cat([one[1:] for one in made.column("returns")]).tolist() == pytest.approx(
            PEERS["returns"], abs=1e-5
        )
