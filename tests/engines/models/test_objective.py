from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import Build, sgd

from twinkle.engines import Rollouts, TransformersModel

IDS = [[3, 5, 7, 9], [3, 5, 8], [2, 4, 6, 1, 1], [2, 4, 9, 9]]


def rollouts() -> Rollouts:
    generator = torch.Generator().manual_seed(0)
    old = [-torch.rand(len(ids), generator=generator) - 4 for ids in IDS]
    mask = [[0, 0] + [1] * (len(ids) - 2) for ids in IDS]
    return Rollouts(IDS, mask, logprobs=old, ref_logprobs=old, advantages=[1.0, -1.0, 0.5, -0.5], counts=[2, 2])


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
    with pytest.raises(ValueError, match="returned the shape"):
        model.forward_backward(rollouts(), lambda logprobs, batch: 1.0)


def test_a_mapping_says_what_counts() -> None:
    model = TransformersModel(Build("llama"), optimizer=sgd)
    padded = rollouts().pad()
    bare = {name: padded[name] for name in ("input_ids", "attention_mask")}
    with pytest.raises(ValueError, match="labels"):
        model.forward_backward(bare)
    with pytest.raises(ValueError, match="labels"):
        model.forward_backward({"input_ids": [[1, 2, 3]], "position_ids": [[0, 1, 2]]})
    for labelled in (bare | {"mask": padded["mask"]}, bare | {"labels": padded["input_ids"]}, {"input_ids": [[1, 2]]}):
        assert model.forward_backward(labelled)["tokens"] > 0
