"""Each estimator's mean over all answers, enumerated, is the exact gradient of the expected reward.

A policy of three tokens writes two of them: there are 9 answers, and 81 groups of two. Each group is weighted by its
probability. `FACTOR` has the estimators whose mean is a known part of the gradient: a mean that includes the answer
itself takes 1 / n of it away (Dr. GRPO, arXiv 2503.20783, appendix A).
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from twinkle.engines import Correction, Rollouts, advantages
from twinkle_engines.algorithms.losses import LOSSES

SIZE = 3
ANSWERS = list(product(range(SIZE), repeat=2))
GROUPS = list(product(range(len(ANSWERS)), repeat=2))
REWARDS = torch.tensor([0.3, -1.0, 2.0, 0.5, 0.0, -0.4, 1.0, 3.0, -2.0], dtype=torch.float64)
FACTOR = {"grpo": 0.5, "reinforce++baseline": 0.5}
KL = 0.3


def table(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64)


class Policy:
    """A table of logits of each token after the one before it, at a temperature; the prompt is the token 0."""

    def __init__(self, seed: int, temperature: float) -> None:
        self.logits = table(seed).requires_grad_()
        self.steps = (self.logits / temperature).log_softmax(1)  # by the token before

    def tokens(self) -> torch.Tensor:
        """Log-probabilities of the tokens of each answer, (answers, 2)."""
        return torch.stack([torch.stack([self.steps[0, a], self.steps[a, b]]) for a, b in ANSWERS])

    def values(self) -> torch.Tensor:
        """The expected reward before each token of each answer, (answers, 2)."""
        whole = (self.tokens().sum(1).exp() * REWARDS).sum()
        after = [(self.steps[a].exp() * REWARDS[3 * a : 3 * a + 3]).sum() for a in range(SIZE)]
        return torch.stack([torch.stack([whole, after[a]]) for a, _ in ANSWERS]).detach()

    def divergence(self, other: Policy, *, forward: bool = False) -> torch.Tensor:
        """KL by token, of the tokens before it held constant: of this policy from the other, or forward."""
        left, right = (other.steps, self.steps) if forward else (self.steps, other.steps)
        each = (left.exp() * (left - right)).sum(1)
        return each[0] + (self.steps[0].exp().detach() * each).sum()


def by_group(column: torch.Tensor) -> list[torch.Tensor]:
    """A column of the answers, (answers, 2), with a 0 at the prompt, for both answers of all groups."""
    return [torch.cat([column.new_zeros(1), column[i].detach()]) for group in GROUPS for i in group]


def groups(old: Policy, **columns: torch.Tensor) -> Rollouts:
    ids = [[0, *ANSWERS[i]] for group in GROUPS for i in group]
    rewards = [[0.0, 0.0, float(REWARDS[i])] for group in GROUPS for i in group]
    given: Any = {"logprobs": old.tokens(), **columns}
    made: Any = {name: by_group(column) for name, column in given.items()}
    return Rollouts(ids, [[0, 1, 1]] * len(ids), rewards=rewards, counts=[2] * len(GROUPS), **made)


def mean_gradient(
    policy: Policy, old: Policy, batch: Rollouts, loss: str, correction: Correction | None = None, **options: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean of a loss over all groups, a group's being the mean of the sums of its answers, and its gradient."""
    tokens = policy.tokens()[[i for group in GROUPS for i in group]]
    current = torch.cat([tokens.new_zeros(len(tokens), 1), tokens], 1)
    padded = {name: one.double() if one.is_floating_point() else one for name, one in batch.pad().items()}
    if correction is not None:
        padded, _ = correction.applied(padded, current)
    values, _ = LOSSES[loss].function(current, padded, **options)
    likely = old.tokens().sum(1).exp().detach()
    weights = torch.stack([likely[i] * likely[j] for i, j in GROUPS]).repeat_interleave(2) / 2
    mean = (weights[:, None] * torch.where(padded["mask"].bool(), values, 0)).sum()
    return mean.detach(), torch.autograd.grad(mean, policy.logits, retain_graph=True)[0]


def exact(policy: Policy, reference: Policy | None = None) -> torch.Tensor:
    """The gradient of minus the expected reward, less KL times the divergence from the reference."""
    whole = policy.tokens().sum(1)
    goal = (whole.exp() * REWARDS).sum()
    if reference is not None:
        goal = goal - KL * (whole.exp() * (whole - reference.tokens().sum(1).detach())).sum()
    return torch.autograd.grad(-goal, policy.logits, retain_graph=True)[0]


ESTIMATES: list[tuple[Any, dict[str, Any]]] = [
    ("rloo", {}),
    ("grpo", {"scale": False}),
    ("remax", {"baselines": [0.7] * len(GROUPS)}),
    ("reinforce++", {"scale": False}),
    ("reinforce++baseline", {"scale": False}),
    ("gae", {"scale": False, "lam": 1.0}),
    ("gae", {"scale": False, "lam": 0.3}),
]


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
@pytest.mark.parametrize(("how", "options"), ESTIMATES)
def test_advantages(how: Any, options: dict[str, Any], temperature: float) -> None:
    policy = Policy(1, temperature)
    # with lam = 1 any values are a baseline; with less the critic has to be right
    critic = policy.values() if options.get("lam", 1.0) < 1 else torch.full((len(ANSWERS), 2), 0.4)
    batch = advantages(groups(policy, values=critic), how, **options)
    found = mean_gradient(policy, policy, batch, "reinforce")[1]
    torch.testing.assert_close(found, FACTOR.get(how, 1.0) * exact(policy), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loss", ["ppo", "grpo", "dapo", "gspo", "cispo", "importance_sampling", "reinforce"])
def test_losses_at_the_policy_that_sampled(loss: str) -> None:
    policy = Policy(2, 0.8)
    batch = advantages(groups(policy), "rloo")
    torch.testing.assert_close(mean_gradient(policy, policy, batch, loss)[1], exact(policy), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("loss", ["importance_sampling", "reinforce"])
def test_samples_of_another_policy_with_weights_of_sequences(loss: str, temperature: float) -> None:
    policy, old = Policy(1, temperature), Policy(3, temperature)
    batch = advantages(groups(old), "rloo")
    correction = Correction("truncate", by="sequence", cap=1e9)
    found = mean_gradient(policy, old, batch, loss, correction)[1]
    torch.testing.assert_close(found, exact(policy), rtol=1e-5, atol=1e-6)
    biased = mean_gradient(policy, old, batch, "reinforce")[1]
    assert (biased - exact(policy)).abs().max() > 0.01


@pytest.mark.parametrize(("how", "options"), ESTIMATES[:4])
def test_a_divergence_in_the_reward_is_that_of_whole_answers(how: Any, options: dict[str, Any]) -> None:
    policy, reference = Policy(1, 0.7), Policy(5, 0.7)
    batch = advantages(groups(policy, ref_logprobs=reference.tokens()), how, kl=KL, **options)
    found = mean_gradient(policy, policy, batch, "reinforce")[1]
    torch.testing.assert_close(found, FACTOR.get(how, 1.0) * exact(policy, reference), rtol=1e-5, atol=1e-6)


def test_a_divergence_in_the_loss_has_the_value_of_one_and_the_gradient_of_the_other_direction() -> None:
    """k3 is an unbiased value of KL(p | reference); its gradient is that of KL(reference | p) by token."""
    policy, reference = Policy(1, 1.0), Policy(5, 1.0)
    batch = groups(policy, ref_logprobs=reference.tokens(), advantages=torch.zeros(len(ANSWERS), 2))
    value, gradient = mean_gradient(policy, policy, batch, "grpo", beta=1.0)
    assert float(value) == pytest.approx(float(policy.divergence(reference).detach()), rel=1e-5)
    forward = policy.divergence(reference, forward=True)
    torch.testing.assert_close(gradient, torch.autograd.grad(forward, policy.logits)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_a_teacher_s_numbers_are_the_gradient_of_the_divergence(temperature: float) -> None:
    policy, teacher = Policy(1, temperature), Policy(5, temperature)
    batch = groups(policy, teacher=teacher.tokens())
    value, gradient = mean_gradient(policy, policy, batch, "reverse_kl")
    right = policy.divergence(teacher)
    assert float(value) == pytest.approx(float(right.detach()), rel=1e-5)
    torch.testing.assert_close(gradient, torch.autograd.grad(right, policy.logits)[0], rtol=1e-5, atol=1e-6)
