"""Options of a model's losses against plain formulas: means, whitening, corrections, entropies, heads, teachers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import VOCABULARY, Build, plain_logprobs, sgd

import twinkle
from twinkle.engines import Correction, Rollouts, TransformersModel

IDS = [[3, 5, 7, 9], [3, 5, 8], [2, 4, 6, 1, 1], [2, 4, 9, 9]]
MASK = [[0, 0] + [1] * (len(ids) - 2) for ids in IDS]
FORMS: list[dict[str, Any]] = [{}, {"micro_batch_size": 2}, {"max_tokens": 9}]


def one(**options: Any) -> TransformersModel:
    return TransformersModel(**{"model": Build("llama"), "optimizer": sgd, **options})


def by_token(seed: int, shift: float = 0.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(len(ids), generator=generator) + shift for ids in IDS]


def rows(**columns: Any) -> Rollouts:
    own = [plain_logprobs(Build("llama")(), torch.tensor(ids)).detach() for ids in IDS]
    given = {"logprobs": own, "advantages": by_token(1), **columns}
    return Rollouts(IDS, MASK, counts=[2, 2], **given)


def flat(columns: list[torch.Tensor]) -> torch.Tensor:
    """The counted tokens of a column."""
    return torch.cat([one[torch.tensor(mask).bool()] for one, mask in zip(columns, MASK, strict=True)])


@pytest.mark.parametrize("options", FORMS)
def test_a_constant_divides_by_sequences_whatever_counts(options: Any) -> None:
    batch = rows()
    token = one(**options).forward_backward(batch, "grpo", normalize="token")
    made = one(**options).forward_backward(batch, "grpo", normalize="constant", constant=10.0)
    assert made["loss"] * 40 == pytest.approx(token["loss"] * token["tokens"], rel=1e-5)
    with pytest.raises(ValueError, match="constant"):
        one().forward_backward(batch, "grpo", normalize="constant")
    with pytest.raises(ValueError, match="constant"):
        one().forward_backward(batch, "grpo", constant=10.0)


@pytest.mark.parametrize("options", FORMS)
def test_whitened_advantages_are_those_of_the_whole_batch(options: Any) -> None:
    batch = rows(advantages=by_token(1, shift=3.0))
    given = flat(batch.column("advantages"))
    right = (batch.tokens["advantages"] - given.mean()) / given.std(unbiased=False)
    expected = one().forward_backward(batch.replace(advantages=list(torch.split(right, batch.lengths))), "ppo")
    assert one(**options).forward_backward(batch, "ppo", whiten=True) == pytest.approx(expected, abs=1e-5)
    alike = one(**options).forward_backward(rows(advantages=[0.3] * 4), "reinforce", whiten=True)
    assert alike["loss"] == pytest.approx(0, abs=1e-5)
    with pytest.raises(ValueError, match="reads no advantages"):
        one().forward_backward(batch, whiten=True)


@pytest.mark.parametrize("loss", ["ppo", "importance_sampling", "reinforce"])
def test_a_correction_weighs_advantages_and_takes_the_ratio_to_proximal(loss: str) -> None:
    old, proximal = by_token(2, -4.0), by_token(3, -4.0)
    batch = rows(logprobs=old, proximal=proximal)
    base = proximal if loss == "ppo" else rows().logprobs
    assert base is not None and batch.advantages is not None
    weights = [(p - q).exp() for p, q in zip(base, old, strict=True)]
    bounded = [w.clamp(0.5, 1.5) for w in weights]
    expected = rows(logprobs=base, advantages=[a * w for a, w in zip(batch.advantages, bounded, strict=True)])
    correction = Correction("truncate", cap=1.5, floor=0.5)
    found = one(max_tokens=9).forward_backward(batch, loss, correction=correction)
    assert found["loss"] == pytest.approx(one().forward_backward(expected, loss)["loss"], rel=1e-4)
    outside = flat([(w != b).float() for w, b in zip(weights, bounded, strict=True)])
    assert found["cut"] == pytest.approx(outside.mean().item())
    assert one().forward_backward(batch, loss, correction="mask")["cut"] > 0
    if loss == "ppo":
        with pytest.raises(KeyError, match="proximal"):
            one().forward_backward(rows(), loss, correction="truncate")


def test_weights_of_a_sequence_are_a_geometric_mean() -> None:
    batch = rows(logprobs=by_token(2, -4.0), proximal=by_token(3, -4.0)).pad()
    made, measured = Correction("mask", by="geometric", cap=1.2, floor=0.8).applied(batch, batch["proximal"])
    for row, length in enumerate(map(len, IDS)):
        weight = float((batch["proximal"] - batch["logprobs"])[row, 2:length].mean().exp())
        kept = weight if 0.8 <= weight <= 1.2 else 0.0
        assert float(made["advantages"][row, 2]) == pytest.approx(float(batch["advantages"][row, 2]) * kept, rel=1e-5)
        assert float(measured["cut"][row, 2]) == (kept == 0)
    with pytest.raises(ValueError, match="correction"):
        Correction("clip")  # type: ignore[arg-type]  # what is tested


def test_the_bonus_is_the_gradient_of_the_entropy() -> None:
    batch = rows()
    plain, bonus = one(), one(micro_batch_size=1)
    expected, found = plain.forward_backward(batch, "dapo"), bonus.forward_backward(batch, "dapo", entropy_bonus=0.5)
    assert found["loss"] == pytest.approx(expected["loss"] - 0.5 * expected["entropy"], rel=1e-4)
    own = one()
    own.forward_backward(
        batch,
        lambda logprobs, batch, entropies: (
            -(logprobs - batch["logprobs"]).exp() * batch["advantages"] - 0.5 * entropies
        ),
    )
    assert bonus.step()["grad_norm"] == pytest.approx(own.step()["grad_norm"], rel=1e-4)
    with pytest.raises(ValueError, match="pairs"):
        one().forward_backward(rows(ref_logprobs=by_token(1)), "dpo", entropy_bonus=0.5)


def test_a_critic_and_a_reward_model_learn() -> None:
    critic = one(head="value")
    batch = rows().with_column("returns", [[1.0] * len(ids) for ids in IDS])
    assert critic.forward_backward(batch, "value")["loss"] == pytest.approx(0.5)  # values begin at 0
    critic.step()
    batch = twinkle.get(critic.annotate(batch, "values"))
    assert critic.forward_backward(batch, "value", clip=0.1)["clipped"] == 0
    with pytest.raises(ValueError, match="scores"):
        critic.forward_backward(batch, "bradley_terry")
    judge = one(head="score")
    before = judge.forward_backward(batch, "bradley_terry")
    judge.step()
    assert before["loss"] == pytest.approx(0.6931, abs=1e-4)
    after = judge.forward_backward(batch, "bradley_terry")
    assert after["loss"] < before["loss"] and after["accuracy"] == 1 and after["margin"] > 0


@pytest.mark.parametrize("options", FORMS)
@pytest.mark.parametrize("loss", ["reverse_kl", "forward_kl", "jsd"])
def test_divergences_over_the_whole_vocabulary_are_exact(loss: str, options: Any) -> None:
    teacher = one(model=Build("llama", seed=9), optimizer=None)
    batch = twinkle.get(teacher.annotate(rows(), "teacher", top_k=VOCABULARY))
    students, teachers = (
        flat(
            [
                torch.cat(
                    [
                        torch.zeros(1, VOCABULARY),
                        Build("llama", seed)()(torch.tensor([ids])).logits[0, :-1].log_softmax(-1),
                    ]
                )
                for ids in IDS
            ]
        )
        for seed in (5, 9)
    )
    mixture = torch.logaddexp(students, teachers) - torch.log(torch.tensor(2.0))

    def kl(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a.exp() * (a - b)).sum(-1).mean()

    right = {
        "reverse_kl": kl(students, teachers),
        "forward_kl": kl(teachers, students),
        "jsd": (kl(students, mixture) + kl(teachers, mixture)) / 2,
    }[loss]
    model = one(**options)
    found = model.forward_backward(batch, loss)
    assert found["loss"] == pytest.approx(float(right.detach()), rel=1e-3)
    assert model.step()["grad_norm"] > 0
    some = twinkle.get(teacher.annotate(rows(), "teacher", top_k=5))
    least = one(**options).forward_backward(some, loss)["loss"]
    assert 0 < least < found["loss"] + 1e-6
    top = some.column("teacher_ids")[0]
    assert top.shape == (4, 5) and some.column("teacher_top")[0].shape == (4, 5)
    if loss != "reverse_kl":
        with pytest.raises(KeyError, match="teacher_ids"):
            one().forward_backward(rows(), loss)
