"""Each loss against a loop over single tokens, value and gradient, padded and packed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch

from twinkle.engines import Rollouts
from twinkle_engines.algorithms.losses import ESTIMATORS, LOSSES, average, counted, dpo, grpo, total_and_count

if TYPE_CHECKING:
    from collections.abc import Callable

OPTIONS: dict[str, dict[str, float]] = {
    "cross_entropy": {},
    "grpo": {"low": 0.2, "high": 0.28, "beta": 0.1},
    "gspo": {"low": 0.05, "high": 0.1},
    "cispo": {"low": 0.5, "high": 0.3},
    "importance_sampling": {},
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
    """Return the loss of each counted token, sequence by sequence, by the formula of its paper."""
    o = OPTIONS[name]
    assert rollouts.mask and rollouts.logprobs and rollouts.ref_logprobs and rollouts.advantages
    out: list[list[Any]] = []
    for i, p in enumerate(torch.split(flat, rollouts.lengths)):
        places = [t for t in range(1, len(p)) if rollouts.mask[i][t]]
        q, ref, adv = rollouts.logprobs[i], rollouts.ref_logprobs[i], rollouts.advantages[i]
        mean = sum((p[t] - q[t] for t in places), torch.zeros(())) / max(1, len(places))
        row = []
        for t in places:
            ratio = torch.exp(mean if name == "gspo" else p[t] - q[t])
            a = adv[t]
            if name == "cross_entropy":
                row.append(-p[t])
            elif name == "importance_sampling":
                row.append(-ratio * a)
            elif name == "cispo":
                row.append(-min(max(float(ratio.detach()), 1 - o["low"]), 1 + o["high"]) * a * p[t])
            else:
                clipped = torch.clamp(ratio, 1 - o["low"], 1 + o["high"])
                r = torch.exp(ref[t] - p[t])
                row.append(-torch.min(ratio * a, clipped * a) + o.get("beta", 0) * (r - 1 - torch.log(r)))
        out.append(row)
    return out


def looped(losses: list[list[Any]], normalize: str) -> torch.Tensor:
    if normalize == "token":
        every = [loss for row in losses for loss in row]
        return torch.stack(every).mean()
    return torch.stack([torch.stack(row).mean() for row in losses if row]).mean()


def padded(
    name: str, rollouts: Rollouts, flat: torch.Tensor, side: Any
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    batch = rollouts.pad(side)
    values = torch.full(batch["input_ids"].shape, -90.0, dtype=torch.float64)  # where no token is, anything may stand
    values = values.masked_scatter(batch["attention_mask"].bool(), flat)
    return LOSSES[name](values, batch, **OPTIONS[name]), batch


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("normalize", ["token", "sequence"])
@pytest.mark.parametrize("name", list(OPTIONS))
def test_values_and_gradients_are_those_of_a_loop(name: str, normalize: Any, side: str) -> None:
    rollouts = sampled()
    flat = of_model(rollouts).requires_grad_()
    values, batch = padded(name, rollouts, flat, side)
    assert values.shape == batch["input_ids"].shape
    loss, want = average(values, batch, normalize), looped(token_losses(name, rollouts, flat), normalize)
    torch.testing.assert_close(loss, want)
    torch.testing.assert_close(torch.autograd.grad(loss, flat), torch.autograd.grad(want, flat))


@pytest.mark.parametrize("normalize", ["token", "sequence"])
@pytest.mark.parametrize("name", list(OPTIONS))
def test_packs_have_the_loss_of_the_padded_batch(name: str, normalize: Any) -> None:
    rollouts = sampled()
    flat = of_model(rollouts)
    values, batch = padded(name, rollouts, flat, "right")
    column = rollouts.replace(rewards=list(torch.split(flat, rollouts.lengths)))  # carries them into the packs
    total = count = torch.zeros((), dtype=torch.float64)
    for pack in column.pack(12):
        part = total_and_count(LOSSES[name](pack["rewards"], pack, **OPTIONS[name]), pack, normalize)
        total, count = total + part[0], count + part[1]
    torch.testing.assert_close(total / count, average(values, batch, normalize))


@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "cispo"])  # whose weight has no gradient
def test_gradients_are_finite_differences(name: str) -> None:
    rollouts = sampled()

    def loss(flat: torch.Tensor) -> torch.Tensor:
        values, batch = padded(name, rollouts, flat, "right")
        return average(values, batch)

    assert torch.autograd.gradcheck(loss, (of_model(rollouts).requires_grad_(),))


def test_dpo_is_that_of_a_loop() -> None:
    rollouts = sampled()
    flat = of_model(rollouts).requires_grad_()
    batch = rollouts.pad("left")
    values = torch.zeros(batch["input_ids"].shape, dtype=torch.float64).masked_scatter(
        batch["attention_mask"].bool(), flat
    )
    assert rollouts.mask and rollouts.ref_logprobs
    sums = [
        sum((p[t] - ref[t] for t in range(1, len(p)) if m[t]), torch.zeros(()))
        for p, ref, m in zip(torch.split(flat, rollouts.lengths), rollouts.ref_logprobs, rollouts.mask, strict=True)
    ]
    want = torch.stack([-torch.log(1 / (1 + torch.exp(-0.3 * (sums[i] - sums[i + 1])))) for i in (0, 2)])
    made = dpo(values, batch, beta=0.3)
    torch.testing.assert_close(made, want)
    torch.testing.assert_close(torch.autograd.grad(made.sum(), flat), torch.autograd.grad(want.sum(), flat))
    with pytest.raises(ValueError, match="has 3 sequences"):
        dpo(values[:3], batch)
    with pytest.raises(ValueError, match="is packed"):
        dpo(values, rollouts.pack(40)[0])


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("name", LOSSES)
def test_what_stands_at_tokens_that_do_not_count_changes_nothing(name: str, wrong: float) -> None:
    torch.manual_seed(1)
    mask = torch.rand(4, 7) < 0.6
    columns = {column: torch.randn(4, 7) for column in ("logprobs", "ref_logprobs", "advantages")}
    given = torch.randn(4, 7) - 2

    def computed(filler: float) -> tuple[torch.Tensor, torch.Tensor]:
        batch = {column: torch.where(mask, values, filler) for column, values in columns.items()}
        batch |= {"input_ids": torch.ones(4, 7), "attention_mask": torch.ones(4, 7), "mask": mask}
        logprobs = given.clone().requires_grad_()
        values = LOSSES[name](logprobs, batch, **OPTIONS.get(name, {}))
        total = values.sum() if values.dim() == 1 else total_and_count(values, batch, "sequence")[0]
        total.backward()  # type: ignore[no-untyped-call]  # torch's own
        assert logprobs.grad is not None
        return total.detach(), logprobs.grad

    for right, other in zip(computed(0.0), computed(wrong), strict=True):
        assert torch.equal(right, other)


def test_what_does_not_count_gives_no_gradient_however_far_off_it_is() -> None:
    rollouts = Rollouts([[1, 2, 3]], mask=[[0, 0, 1]], logprobs=[[0.0, -1e4, -1.0]], advantages=[1.0])
    batch = {**rollouts.pad(), "ref_logprobs": torch.tensor([[0.0, 1e4, -1.0]])}
    values = torch.tensor([[0.0, 0.0, -1.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(average(grpo(values, batch, beta=0.5), batch), values)
    assert gradient.tolist() == [[0, 0, -1]]


@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("name", list(OPTIONS))
def test_a_token_whose_ratio_overflows_gives_finite_losses_and_gradients(name: str, advantage: float) -> None:
    rollouts = Rollouts([[1, 2, 3]], logprobs=[[0.0, -200.0, -200.0]], advantages=[advantage])
    batch = {**rollouts.pad(), "ref_logprobs": torch.tensor([[0.0, 0.0, 200.0]])}
    values = torch.tensor([[0.0, -1.0, -150.0]], requires_grad=True)
    losses = LOSSES[name](values, batch, **OPTIONS[name])
    (gradient,) = torch.autograd.grad(losses.sum(), values)
    assert losses.isfinite().all() and gradient.isfinite().all()


def test_tokens_that_count_are_written_by_the_model_and_predicted() -> None:
    rollouts = Rollouts([[1, 2, 3], [4, 5]], mask=[[1, 1, 0], [1, 1]])
    want = {"right": [[0, 1, 0], [0, 1, 0]], "left": [[0, 1, 0], [0, 0, 1]]}
    for side in ("left", "right"):
        batch = rollouts.pad(side)
        assert counted(batch).int().tolist() == want[side]
        del batch["position_ids"]
        assert counted(batch).int().tolist() == want[side]
    assert counted(rollouts.pack(5)[0]).int().tolist() == [[0, 1, 0, 0, 1]]


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("name", LOSSES)
def test_a_column_of_another_shape_is_never_spread_over_the_batch(name: str, size: int) -> None:
    """One number a sequence would be spread over the tokens where a batch has as many of them as sequences."""
    columns = {column: torch.randn(size, size) for column in ("logprobs", "ref_logprobs", "advantages")}
    batch = {"input_ids": torch.ones(size, size), "attention_mask": torch.ones(size, size), **columns}
    for column, values in columns.items():
        for other in (values[:, 0], values[:1], values[:, :1], values[None], values.sum()):
            if other.shape == values.shape or name == "cross_entropy" or (size == 1 and name == "dpo"):
                continue
            reads = {"dpo": ("ref_logprobs",), "grpo": tuple(columns)}.get(name, ("logprobs", "advantages"))
            options: dict[str, float] = {"beta": 0.1} if name == "grpo" else {}
            if column in reads:
                with pytest.raises(ValueError, match=rf"column {column} by token"):
                    LOSSES[name](torch.randn(size, size), {**batch, column: other}, **options)
    for other in (torch.randn(size), torch.randn(1, size, size)):
        with pytest.raises(ValueError, match="the values of a loss"):
            average(other, batch)


@pytest.mark.parametrize("wrong", [math.inf, -math.inf])
@pytest.mark.parametrize("name", [name for name in LOSSES if name != "cross_entropy"])
def test_what_is_infinite_at_a_token_that_counts_is_named(name: str, wrong: float) -> None:
    """A bound of the ratio would make a number of it: a clipped token, or none."""
    given = {column: torch.zeros(2, 3) for column in ("logprobs", "ref_logprobs", "advantages")}
    batch = {"input_ids": torch.ones(2, 3), "attention_mask": torch.ones(2, 3), **given}
    reads = {"dpo": ["ref_logprobs"], "grpo": list(given)}.get(name, ["logprobs", "advantages"])
    for column in reads:
        spoiled = given[column].clone()
        spoiled[1, 2] = wrong
        with pytest.raises(ValueError, match=f"column {column} has {wrong}"):
            LOSSES[name](torch.zeros(2, 3), {**batch, column: spoiled}, **({"beta": 0.1} if name == "grpo" else {}))


def test_errors_name_what_is_missing() -> None:
    batch = Rollouts([[1, 2]], logprobs=[[0.0, 0.0]]).pad()
    with pytest.raises(ValueError, match="the loss grpo needs the column advantages"):
        grpo(torch.zeros(1, 2), batch)
    with pytest.raises(ValueError, match="'token' or 'sequence', not 'row'"):
        average(torch.zeros(1, 2), batch, "row")  # type: ignore[arg-type]  # what is tested
    assert float(average(torch.ones(1, 2), {"input_ids": torch.ones(1, 2), "mask": torch.zeros(1, 2)})) == 0


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("k1", lambda r: -math.log(r)),
        ("k2", lambda r: math.log(r) ** 2 / 2),
        ("k3", lambda r: (r - 1) - math.log(r)),
    ],
)
def test_divergence_estimators(name: str, formula: Callable[[float], float]) -> None:
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    made = ESTIMATORS[name](p.log(), q.log())
    assert made.tolist() == pytest.approx([formula(float(b / a)) for a, b in zip(p, q, strict=True)], rel=1e-4)
    exact = float((p * (p / q).log()).sum())
    assert (float((p * made).sum()) == pytest.approx(exact, rel=1e-4)) == (name != "k2")  # k2 alone is biased
