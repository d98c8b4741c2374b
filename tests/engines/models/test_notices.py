"""What trains the wrong thing is said or refused: each of these fails without its check (docs/checks.md)."""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_models import Build, logprobs_of, ragged, sgd

from twinkle.engines import Rollouts, TransformersModel, losses
from twinkle_engines.algorithms.losses import LOSSES

IDS = [[3, 5, 7, 9], [3, 5, 8, 2], [2, 4, 6, 1], [2, 4, 9, 9]]
MASK = [[0, 0, 1, 1]] * 4
LORA = LoraConfig(r=4, target_modules=["q_proj"])
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft's


def one(**options: Any) -> TransformersModel:
    return TransformersModel(**{"model": Build("llama"), "optimizer": sgd, **options})


def sampled(model: TransformersModel, mask: Any = MASK, **columns: Any) -> Rollouts:
    rows = Rollouts(IDS, mask, counts=[2, 2], advantages=[1.0, -1.0, 0.5, 0.0])
    return rows.replace(logprobs=logprobs_of(model, rows), **columns)


def test_a_batch_in_which_nothing_counts_is_said() -> None:
    with pytest.warns(UserWarning, match="no token of this batch counts"):
        one().forward_backward(Rollouts(IDS, [[0] * 4] * 4))


def test_labels_that_were_shifted_before_are_said() -> None:
    tokens = torch.tensor(IDS)
    with pytest.warns(UserWarning, match="shifted before"):
        one().forward_backward({"input_ids": tokens[:, :-1], "labels": tokens[:, 1:]})
    model = one()  # in which a repeated token is its own label, and the next one's
    model.forward_backward({"input_ids": torch.full((2, 9), 5), "labels": torch.full((2, 9), 5)})
    model.forward_backward({"input_ids": tokens, "labels": tokens})


def test_a_prompt_that_counts_for_want_of_a_mask_is_said() -> None:
    model = one()
    rows = sampled(model, mask=None)
    assert rows.logprobs is not None
    with pytest.warns(UserWarning, match="there is no mask"):
        model.forward_backward(
            rows.replace(logprobs=[one * torch.tensor([0, 0, 1, 1]) for one in rows.logprobs]), "grpo"
        )
    model.forward_backward(sampled(model), "grpo")


def test_advantages_of_0_and_entropies_of_a_policy_loss_are_measured() -> None:
    for options in ({}, {"micro_batch_size": 1}, {"max_tokens": 9}):
        model = one(**options)
        found = model.forward_backward(sampled(model), "grpo")
        logits = Build("llama")()(input_ids=torch.tensor(IDS)).logits.log_softmax(-1)
        entropies = -(logits.exp() * logits).sum(-1)[:, 1:3]
        assert found["entropy"] == pytest.approx(entropies.mean().item(), rel=1e-5)
        assert found["zero_advantages"] == 0.25 and found["tokens"] == 8


def test_a_loss_is_given_entropies_and_measures() -> None:
    def bold(logprobs: torch.Tensor, batch: Any, entropies: torch.Tensor, weight: float) -> Any:
        long = batch["mask"].sum(1).float()
        return -logprobs - weight * entropies, {"entropy": entropies, "length": long}

    right = one().forward_backward(ragged(5, 1), bold, weight=0.1)
    plain = one().forward_backward(ragged(5, 1))
    assert right["loss"] == pytest.approx(plain["loss"] - 0.1 * right["entropy"], rel=1e-5)
    assert right["length"] == pytest.approx(right["tokens"] / 5)
    for options in ({"micro_batch_size": 2}, {"micro_batch_size": 1}):
        assert one(**options).forward_backward(ragged(5, 1), bold, weight=0.1) == pytest.approx(right, rel=1e-5)
    norms = []
    for weight in (0.0, 0.5):
        model = one()
        model.forward_backward(ragged(5, 1), bold, weight=weight)
        norms.append(model.step()["grad_norm"])
    assert abs(norms[0] - norms[1]) > 1e-3
    with pytest.raises(ValueError, match="as strange"):
        one().forward_backward(ragged(5, 1), lambda logprobs, batch: (-logprobs, {"strange": logprobs.mean()}))


def test_a_loss_that_only_looks_is_said_and_evaluate_loss_counts_for_nothing() -> None:
    with pytest.warns(UserWarning, match="use evaluate_loss"):
        one().forward_backward(ragged(3, 1), lambda logprobs, batch: -logprobs * 0.0)
    plain, looked = one(dropout=True), one(dropout=True)
    assert looked.evaluate_loss(ragged(4, 7)) == pytest.approx(one().forward_backward(ragged(4, 7)))
    assert looked.evaluate_loss(ragged(0, 7)) == {"loss": 0.0, "tokens": 0.0}
    assert looked.evaluate_loss(ragged(4, 7), lambda logprobs, batch: -logprobs) == looked.evaluate_loss(ragged(4, 7))
    norms = []
    for model in (plain, looked):
        model.forward_backward(ragged(3, 1))
        if model is looked:
            model.evaluate_loss(sampled(model), "grpo", beta=0.0)
        norms.append(model.step()["grad_norm"])
    assert norms[0] == norms[1]
    assert one(optimizer=None).evaluate_loss(ragged(3, 1))["loss"] > 0


def test_a_loss_by_its_function_is_the_one_by_its_name() -> None:
    for name, loss in LOSSES.items():
        if loss.head != "lm" or "teacher_ids" in loss.reads:  # tests/engines/algorithms/test_training.py has them
            continue
        told = []
        for given in (name, loss.function):
            model = one()
            rows = sampled(model, mask=[[0, 1, 1, 1], [0, 0, 1, 1]] * 2)
            assert rows.logprobs is not None
            teacher = [each - 0.1 * torch.arange(len(each)) for each in rows.logprobs]
            found = model.forward_backward(rows.replace(ref_logprobs=rows.logprobs, teacher=teacher), given)
            told.append([found, model.step()["grad_norm"]])
        assert told[0] == told[1], name
    assert losses.grpo is LOSSES["grpo"].function


def test_means_of_two_units_are_refused_whoever_made_them() -> None:
    def by_sequence(logprobs: torch.Tensor, batch: Any) -> torch.Tensor:
        return -torch.where(batch["mask"], logprobs, 0).sum(1)

    for first, second in ((by_sequence, "cross_entropy"), ("cross_entropy", by_sequence)):
        model = one()
        model.forward_backward(ragged(4, 1), first)
        with pytest.raises(ValueError, match="mean over"):
            model.forward_backward(ragged(4, 1), second)


def test_pairs_of_a_loss_of_ones_own_are_not_torn() -> None:
    def margin(logprobs: torch.Tensor, batch: Any) -> torch.Tensor:
        total = torch.where(batch["mask"], logprobs, 0).sum(1)
        return -torch.nn.functional.logsigmoid(total[0::2] - total[1::2])

    right = one().forward_backward(Rollouts(IDS, counts=[2, 2]), margin)["loss"]
    assert one(micro_batch_size=3).forward_backward(Rollouts(IDS, counts=[2, 2]), margin)["loss"] == pytest.approx(
        right
    )
    with pytest.raises(ValueError, match="rows of two"):
        one(micro_batch_size=2).forward_backward(Rollouts(IDS), margin)
    with pytest.raises(ValueError, match="rows of two"):
        one().forward_backward(Rollouts(IDS).pad(), "dpo")


def test_a_column_that_a_loss_misses_is_named_with_those_that_are_there() -> None:
    with pytest.raises(KeyError, match=r"column 'labels', and .* mask, targets"):
        one().forward_backward(ragged(2, 1), lambda logprobs, batch: -logprobs * (batch["labels"] != -100))


def test_adapters_that_stay_as_they_were_are_said() -> None:
    for alpha in (8, 0):
        model = one(lora=LoraConfig(r=4, target_modules=["q_proj"], lora_alpha=alpha), optimizer=adamw_without_decay)
        for step in range(12):
            model.forward_backward(ragged(2, 1))
            if alpha:
                model.step()
            elif step == 10:
                with pytest.warns(UserWarning, match="after 10 steps what they were"):
                    model.step()
            else:
                with pytest.warns(UserWarning, match="gradient is 0") if not step else nullcontext():
                    model.step()


def test_an_adapter_that_is_switched_off_is_refused() -> None:
    def switched_off() -> Any:
        model = get_peft_model(Build("llama")(), LORA)
        model.disable_adapter_layers()
        return model

    with pytest.raises(ValueError, match="adapter 'default' is switched off"):
        one(model=switched_off)


def test_annotate_without_adapters_is_the_model_that_they_were_put_into() -> None:
    rows, plain = Rollouts(IDS), one()
    adapted = one(lora=LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False))
    both = partial(adapted.annotate, column="own")(adapted.annotate(rows, "ref_logprobs", adapters=False))
    right = torch.cat(logprobs_of(plain, rows))
    torch.testing.assert_close(both.tokens["ref_logprobs"], right, rtol=0, atol=1e-5)
    assert (both.tokens["own"] - right).abs().max() > 1e-3
    torch.testing.assert_close(torch.cat(logprobs_of(adapted, rows)), both.tokens["own"], rtol=0, atol=1e-5)
    for call in (partial(plain.annotate, rows, "x", adapters=False), partial(plain.annotate, rows, "prompts")):
        with pytest.raises(ValueError, match=r"adapters, and this one has none|'prompts' has no number"):
            call()
    assert len(plain.annotate(rows[:0], "proximal")) == 0
    with pytest.raises(ValueError, match="not finite"):
        one(model=broken).annotate(rows, "proximal")


def broken() -> Any:
    model = Build("llama")()
    model.lm_head.weight.data[3] = math.nan
    return model


class Averaged(torch.optim.SGD):
    """With the weights of two modes, as schedule-free optimizers have."""

    def eval(self) -> None:
        self._scale(2.0, True)

    def train(self) -> None:
        self._scale(0.5, False)

    @torch.no_grad()
    def _scale(self, factor: float, is_eval: bool) -> None:
        if getattr(self, "is_eval", False) != is_eval:
            self.is_eval = is_eval
            for one in self.param_groups[0]["params"]:
                one.mul_(factor)


def test_an_optimizer_with_modes_shows_the_weights_to_evaluate() -> None:
    model, plain = one(optimizer=lambda ps: Averaged(ps, lr=0.1)), one(optimizer=lambda ps: torch.optim.SGD(ps, lr=0.1))
    for _ in range(2):
        for each in (model, plain):
            each.forward_backward(ragged(4, 1))
            each.step()
        for name, weight in plain.weights().items():
            torch.testing.assert_close(model.weights()[name], 2 * weight)


def test_optimizers_of_pairs_rates_that_are_set_and_sleep() -> None:
    def named(named_parameters: Any) -> torch.optim.Optimizer:
        no_decay = [one for name, one in named_parameters if "norm" in name]
        rest = [one for name, one in named_parameters if "norm" not in name]
        assert no_decay and rest
        return torch.optim.SGD([{"params": no_decay}, {"params": rest}], lr=0.1)

    model = one(optimizer=named)
    model.set_learning_rate(0.5)
    model.forward_backward(ragged(2, 1))
    model.sleep()
    for call in (model.step, partial(model.forward_backward, ragged(2, 1)), model.weights):
        with pytest.raises(RuntimeError, match=r"wake\(\)"):
            call()
    model.wake()
    assert model.step()["lr"] == 0.5
    with pytest.raises(ValueError, match="at or above 0"):
        model.set_learning_rate(math.nan)
    with pytest.raises(ValueError, match="has a schedule"):
        one(schedule=lambda o: torch.optim.lr_scheduler.StepLR(o, 1)).set_learning_rate(0.1)


def adamw_without_decay(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.0)
