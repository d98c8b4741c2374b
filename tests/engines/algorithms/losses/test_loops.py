"""Each loss of one number by token against a loop over single tokens, value and gradient, padded and packed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from twinkle.engines import Rollouts
from twinkle_engines.algorithms.losses import LOSSES, average, dpo, total_and_count

OPTIONS: dict[str, dict[str, float]] = {
    "cross_entropy": {},
    "ppo": {"low": 0.2, "high": 0.3, "dual": 1.1},
    "grpo": {"low": 0.2, "high": 0.28, "beta": 0.1},
    "dapo": {"low": 0.1, "high": 0.2},
    "gspo": {"low": 0.05, "high": 0.1},
    "cispo": {"low": 0.5, "high": 0.3},
    "importance_sampling": {},
    "reinforce": {},
}


def sampled() -> Rollouts:
    torch.manual_seed(3)
    lengths = [7, 4, 5, 3]
    columns: dict[str, Any] = {
        name: [torch.randn(n, dtype=torch.float64) * 0.4 for n in lengths]
        for name in ("logprobs", "ref_logprobs", "advantages")
    }
    mask = [[0, 0, 1, 0, 1, 1, 1], [0, 1, 1, 1], [1, 1, 0, 0, 1], [0, 0, 0]]
    return Rollouts([list(range(n)) for n in lengths], mask=mask, counts=[2, 2], **columns)


def of_model(rollouts: Rollouts) -> torch.Tensor:
    """Log-probabilities of another model, of all tokens one after the other."""
    torch.manual_seed(4)
    return torch.randn(sum(rollouts.lengths), dtype=torch.float64) * 0.4


def token_losses(name: str, rollouts: Rollouts, flat: torch.Tensor) -> list[list[Any]]:
    """The loss of each counted token, sequence by sequence, by the formula of its paper."""
    o = OPTIONS[name]
    assert rollouts.mask and rollouts.logprobs and rollouts.ref_logprobs and rollouts.advantages
    out: list[list[Any]] = []
    for i, p in enumerate(torch.split(flat, rollouts.lengths)):
        places = [t for t in range(1, len(p)) if rollouts.mask[i][t]]
        q, ref, adv = rollouts.logprobs[i], rollouts.ref_logprobs[i], rollouts.advantages[i]
        mean = sum((p[t] - q[t] for t in places), torch.zeros(())) / max(1, len(places))
        row: list[Any] = []
        for t in places:
            ratio, a = torch.exp(mean if name == "gspo" else p[t] - q[t]), adv[t]
            if name in ("cross_entropy", "reinforce"):
                row.append(-p[t] * (1 if name == "cross_entropy" else a))
            elif name == "importance_sampling":
                row.append(-ratio * a)
            elif name == "cispo":
                row.append(-min(max(float(ratio.detach()), 1 - o["low"]), 1 + o["high"]) * a * p[t])
            else:
                r = torch.exp(ref[t] - p[t])
                gain = torch.min(ratio * a, torch.clamp(ratio, 1 - o["low"], 1 + o["high"]) * a)
                if "dual" in o and a < 0:
                    gain = torch.max(gain, o["dual"] * a)
                row.append(-gain + o.get("beta", 0) * (r - 1 - torch.log(r)))
        out.append(row)
    return out


def looped(losses: list[list[Any]], normalize: str) -> torch.Tensor:
    if normalize == "token":
        return torch.stack([loss for row in losses for loss in row]).mean()
    return torch.stack([torch.stack(row).mean() for row in losses if row]).mean()


def padded(name: str, rollouts: Rollouts, flat: torch.Tensor, side: Any = "right") -> tuple[torch.Tensor, Any]:
    batch = rollouts.pad(side)
    values = torch.full(batch["input_ids"].shape, -90.0, dtype=torch.float64)  # where no token is, anything may stand
    values = values.masked_scatter(batch["attention_mask"].bool(), flat)
    return LOSSES[name].function(values, batch, **OPTIONS[name])[0], batch


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("normalize", ["token", "sequence"])
@pytest.mark.parametrize("name", OPTIONS)
def test_values_and_gradients_are_those_of_a_loop(name: str, normalize: Any, side: str) -> None:
    rollouts = sampled()
    flat = of_model(rollouts).requires_grad_()
    values, batch = padded(name, rollouts, flat, side)
    loss, want = average(values, batch, normalize), looped(token_losses(name, rollouts, flat), normalize)
    torch.testing.assert_close(loss, want)
    torch.testing.assert_close(torch.autograd.grad(loss, flat), torch.autograd.grad(want, flat))


@pytest.mark.parametrize("normalize", ["token", "sequence"])
@pytest.mark.parametrize("name", OPTIONS)
def test_packs_have_the_loss_of_the_padded_batch(name: str, normalize: Any) -> None:
    rollouts = sampled()
    flat = of_model(rollouts)
    values, batch = padded(name, rollouts, flat)
    carried = rollouts.replace(rewards=list(torch.split(flat, rollouts.lengths)))  # into the packs
    total = count = torch.zeros((), dtype=torch.float64)
    for pack in carried.pack(12):
        made, _ = LOSSES[name].function(pack["rewards"], pack, **OPTIONS[name])
        part = total_and_count(made, pack, normalize)
        total, count = total + part[0], count + part[1]
    torch.testing.assert_close(total / count, average(values, batch, normalize))


def test_dpo_is_that_of_a_loop() -> None:
    rollouts = sampled()
    flat = of_model(rollouts).requires_grad_()
    batch = rollouts.pad("left")
    values = torch.zeros(batch["input_ids"].shape, dtype=torch.float64)
    values = values.masked_scatter(batch["attention_mask"].bool(), flat)
    assert rollouts.mask and rollouts.ref_logprobs
    sums = [
        sum((p[t] - ref[t] for t in range(1, len(p)) if m[t]), torch.zeros(()))
        for p, ref, m in zip(torch.split(flat, rollouts.lengths), rollouts.ref_logprobs, rollouts.mask, strict=True)
    ]
    want = torch.stack([-torch.log(1 / (1 + torch.exp(-0.3 * (sums[i] - sums[i + 1])))) for i in (0, 2)])
    made, _ = dpo(values, batch, beta=0.3)
    torch.testing.assert_close(made, want)
    torch.testing.assert_close(torch.autograd.grad(made.sum(), flat), torch.autograd.grad(want.sum(), flat))
