from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import Build, plain_logprobs, sgd

from twinkle.engines import Rollouts, TransformersModel

IDS = [[3, 5, 7, 9], [3, 5, 8], [2, 4, 6, 1, 1], [2, 4, 9, 9]]


def rollouts() -> Rollouts:
    generator = torch.Generator().manual_seed(0)
    old = [-torch.rand(len(ids), generator=generator) - 4 for ids in IDS]
    mask = [[0, 0] + [1] * (len(ids) - 2) for ids in IDS]
    return Rollouts(IDS, mask, old, ref_logprobs=old, advantages=[1.0, -1.0, 0.5, -0.5], counts=[2, 2])


def test_grpo_over_micro_batches_is_its_formula() -> None:
    model, batch = Build("llama")(), rollouts()
    assert batch.logprobs is not None and batch.advantages is not None
    total, count = 0.0, 0
    for ids, old, advantage in zip(batch.ids, batch.logprobs, batch.advantages, strict=True):
        ratio = (plain_logprobs(model, ids).detach() - old).exp()[2:]
        gains = torch.minimum(ratio * advantage[2:], ratio.clamp(0.9, 1.3) * advantage[2:])
        total, count = total - float(gains.sum()), count + len(gains)
    trained = TransformersModel(Build("llama"), optimizer=sgd, micro_batch_size=1)
    loss = trained.forward_backward(batch, "grpo", "token", low=0.1, high=0.3)["loss"]
    assert loss == pytest.approx(total / count, abs=2e-6)  # gains of up to 1 cancel out
    assert trained.step()["grad_norm"] > 0


def test_dpo_counts_pairs() -> None:
    model, batch = Build("llama")(), rollouts()
    assert batch.ref_logprobs is not None
    ratios = [
        float((plain_logprobs(model, ids).detach() - ref)[2:].sum())
        for ids, ref in zip(batch.ids, batch.ref_logprobs, strict=True)
    ]
    expected = [float(torch.nn.functional.softplus(torch.tensor(-0.5 * (ratios[i] - ratios[i + 1])))) for i in (0, 2)]
    trained = TransformersModel(Build("llama"), optimizer=sgd, micro_batch_size=1)
    assert trained.forward_backward(batch, "dpo", beta=0.5)["loss"] == pytest.approx(sum(expected) / 2, rel=1e-4)


@pytest.mark.parametrize("options", [{}, {"micro_batch_size": 1}, {"max_tokens": 9}])
def test_a_loss_of_another_shape_is_told_with_both(options: Any) -> None:
    model = TransformersModel(Build("llama"), optimizer=sgd, **options)
    shapes: list[Any] = [
        lambda x: x[:, 1:],
        lambda x: x.sum(),
        lambda x: x[..., None],
        lambda x: x.T,
        lambda x: x.new_zeros(17).requires_grad_() + x.sum(),
    ]
    for shape in shapes:

        def shaped(logprobs: torch.Tensor, batch: Any, shape: Any = shape) -> torch.Tensor:
            found: torch.Tensor = shape(-logprobs)
            return found

        with pytest.raises(ValueError, match=r"shaped returned the shape"):
            model.forward_backward(rollouts(), shaped)
    assert model.forward_backward(rollouts(), lambda logprobs, batch: -logprobs)["loss"] > 0


def test_a_loss_that_no_gradient_comes_from_is_named() -> None:
    model = TransformersModel(Build("llama"), optimizer=sgd)
    with pytest.raises(ValueError, match="without a gradient"):
        model.forward_backward(rollouts(), lambda logprobs, batch: -logprobs.detach())
    with pytest.raises(TypeError, match="returned float"):
        model.forward_backward(rollouts(), lambda logprobs, batch: 1.0)  # type: ignore[arg-type,return-value]  # as users write it


@pytest.mark.parametrize("loss", ["grpo", "gspo", "cispo", "importance_sampling", "cross_entropy", "dpo"])
def test_each_loss_has_the_mean_of_its_paper(loss: str) -> None:
    expected = {"grpo": "sequence", "gspo": "sequence", "dpo": None}.get(loss, "token")
    told = []
    for given in (None, expected):
        model = TransformersModel(Build("llama"), optimizer=sgd, micro_batch_size=1)
        told.append([model.forward_backward(rollouts(), loss, given)["loss"], model.step()["grad_norm"]])  # type: ignore[arg-type]  # as users write it
    assert told[0] == told[1]
    model = TransformersModel(Build("llama"), optimizer=sgd)
    model.forward_backward(rollouts(), loss)
    other: Any = "token" if expected == "sequence" else "sequence"
    if loss == "dpo":
        with pytest.raises(ValueError, match="pairs"):
            model.forward_backward(rollouts(), loss, other)
    with pytest.raises(ValueError, match="mean over"):
        model.forward_backward(rollouts(), "cross_entropy", other)


@pytest.mark.parametrize("counts", [[1, 1, 1, 1], [3, 1], [4], [2, 1, 1]])
def test_pairs_are_rows_of_two(counts: list[int]) -> None:
    model = TransformersModel(Build("llama"), optimizer=sgd)
    with pytest.raises(ValueError, match="rows of two"):
        model.forward_backward(rollouts().replace(counts=counts), "dpo")
    assert model.forward_backward(rollouts().replace(counts=[2, 0, 2]), "dpo")["loss"] > 0


def test_a_mapping_says_what_counts() -> None:
    model = TransformersModel(Build("llama"), optimizer=sgd)
    padded = rollouts().pad()
    bare = {name: padded[name] for name in ("input_ids", "attention_mask")}
    with pytest.raises(ValueError, match="labels"):
        model.forward_backward(bare)
    with pytest.raises(ValueError, match="labels"):
        model.forward_backward({"input_ids": [[1, 2, 3]], "position_ids": [[0, 1, 2]]})
    assert len(model.logprobs(bare)) == 4
    for labelled in (bare | {"mask": padded["mask"]}, bare | {"labels": padded["input_ids"]}, {"input_ids": [[1, 2]]}):
        assert model.forward_backward(labelled)["tokens"] > 0


def own(logprobs: torch.Tensor, batch: Any) -> torch.Tensor:
    return -logprobs


def marked(which: list[bool] | None) -> Rollouts:
    return rollouts().replace(truncated_sampling=which)


@pytest.mark.parametrize("loss", ["grpo", "gspo", "cispo", "importance_sampling", own])
def test_a_policy_loss_of_truncated_sampling_warns_once(loss: Any) -> None:
    model = TransformersModel(Build("llama"), optimizer=sgd, micro_batch_size=1)
    model.forward_backward(marked(None), loss)
    model.forward_backward(marked([False, False, True, True])[:1], loss)
    with pytest.warns(UserWarning, match="top_k"):
        model.forward_backward(marked([False, False, False, True]), loss)
    model.forward_backward(marked([True] * 4), loss)


@pytest.mark.parametrize("form", ["mapping", "packs", "list", "max_tokens"])
def test_a_batch_of_any_form_tells_its_truncated_sampling(form: str) -> None:
    options: Any = {"max_tokens": 9} if form == "max_tokens" else {}
    model = TransformersModel(Build("llama"), optimizer=sgd, **options)
    given = marked([False, False, True, False])
    forms: Any = {"mapping": given.pad(), "packs": given.pack(9), "list": [given[0], given[1]]}
    with pytest.warns(UserWarning, match="top_k"):
        model.forward_backward(forms.get(form, given), "cispo")


@pytest.mark.parametrize("loss", ["cross_entropy", "dpo", own])
def test_other_losses_take_truncated_sampling(loss: Any) -> None:
    given = marked([True] * 4)
    given = given.replace(logprobs=None, advantages=None) if loss is own else given
    TransformersModel(Build("llama"), optimizer=sgd).forward_backward(given, loss)
