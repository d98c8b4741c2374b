"""The columns that a model and its losses read: the same figures as with all of them, and no other is there."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tiny_models import Build, sgd

from twinkle_engines import Rollouts, TransformersModel
from twinkle_engines.algorithms.losses import LOSSES, NORMALIZATIONS, READS, reading
from twinkle_engines.batches.rollouts_splitter import RolloutsSplitter
from twinkle_engines.models.read_columns import read_by_training
from twinkle_remote import remote_class, remote_function, session
from twinkle_remote.errors import UnreadColumnError
from twinkle_remote.values import column_of

if TYPE_CHECKING:
    from collections.abc import Mapping


def rollouts(n: int = 4) -> Rollouts:
    lengths = [3 + 5 * i % 7 for i in range(2 * n)]
    ids = [torch.arange(1, length + 1) for length in lengths]
    return Rollouts(
        ids,
        mask=[torch.arange(length) > 1 for length in lengths],
        logprobs=[-one / 4.0 for one in ids],
        ref_logprobs=[-one / 5.0 for one in ids],
        advantages=[float(length % 3) - 1 for length in lengths],
        rewards=[1.0] * len(lengths),
        temperatures=[0.5 + i / 4 for i in range(len(lengths))],
        prompts=["asked"] * n,
        completions=["answered"] * len(lengths),
        counts=[2] * n,
        columns={"more": list(range(n))},
    )


@remote_class()
class Reader:
    """Has the columns that the batch of a call holds."""

    @remote_function(dispatch="slice_dp", collect="flatten", reads=read_by_training)
    def there(self, batch: Rollouts, loss: Any = "cross_entropy", **options: Any) -> list[list[str]]:
        splitter = RolloutsSplitter()
        left = set(map(column_of, splitter.marks(batch)))
        return [sorted(set(splitter.columns(batch)) - left)] * len(batch)


def one(max_tokens: int | None = None) -> TransformersModel:
    return TransformersModel(Build("llama"), optimizer=sgd, max_tokens=max_tokens)


CASES: list[tuple[str, dict[str, Any]]] = [*((name, {}) for name in LOSSES), ("grpo", {"beta": 0.1})]


@pytest.mark.parametrize("max_tokens", [None, 64])
@pytest.mark.parametrize(("loss", "options"), CASES)
def test_a_loss_by_name_reads_its_columns_and_no_others(
    loss: str, options: dict[str, Any], max_tokens: int | None
) -> None:
    if loss == "dpo" and max_tokens:
        pytest.skip("a loss of pairs takes no packs, which its own tests have")
    whole, function = rollouts(), LOSSES[loss]
    found = one(max_tokens).forward_backward(whole, loss, dropout=False, **options)
    if NORMALIZATIONS[loss] == "token":
        reading_all = one(max_tokens).forward_backward(whole, partial(function, **options), dropout=False)
        assert found == pytest.approx(reading_all, rel=1e-6)
    named = set(read_by_training(loss, **options) or ())
    columns = [name for name in ("mask", "temperatures", "logprobs", "ref_logprobs", "advantages") if name in named]
    some = whole.select(columns)
    assert one(max_tokens).forward_backward(some, loss, dropout=False, **options) == found
    if READS[loss]:
        lacking = whole.select([name for name in columns if name != READS[loss][0]])
        with pytest.raises(ValueError, match=READS[loss][0]):
            one().forward_backward(lacking, loss)


def test_columns_that_are_not_read_are_left_out() -> None:
    with session("local"):
        reader = Reader()
        assert next(iter(reader.there(rollouts()))) == ["ids", "mask", "temperatures"]
        assert next(iter(reader.there(rollouts(), "dpo"))) == ["ids", "mask", "ref_logprobs", "temperatures"]
        grpo = ["advantages", "ids", "logprobs", "mask", "temperatures"]
        assert next(iter(reader.there(rollouts(), "grpo"))) == grpo
        assert next(iter(reader.there(rollouts(), "grpo", beta=0.1))) == sorted([*grpo, "ref_logprobs"])
        assert "more" in next(iter(reader.there(rollouts(), print)))  # a function that does not say


def test_a_loss_of_ones_own_says_what_it_reads() -> None:
    def weighted(logprobs: torch.Tensor, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return -logprobs * batch["advantages"]

    def curious(logprobs: torch.Tensor, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        assert "rewards" in batch
        return -logprobs * batch["rewards"]

    expected = one().forward_backward(rollouts(), weighted)
    assert one().forward_backward(rollouts(), reading("advantages")(weighted)) == expected
    with pytest.raises(UnreadColumnError, match="rewards"):
        one().forward_backward(rollouts(), reading("advantages")(curious))
    with pytest.raises(TypeError, match="names of columns"):
        reading(3)  # type: ignore[arg-type]  # no name


def test_the_inputs_of_a_model_are_refused_also_where_no_loss_reads_them() -> None:
    ids = torch.arange(1, 9).view(2, 4)
    batch = {"input_ids": ids, "labels": ids}
    expected = one().forward_backward(batch)
    zeros = torch.zeros_like(ids)
    assert (
        one().forward_backward({**batch, "token_type_ids": zeros, "texts": ["a", "b"], "inputs_embeds": None})
        == expected
    )
    with pytest.raises(ValueError, match="inputs_embeds"):
        one().forward_backward({**batch, "inputs_embeds": torch.ones(2, 4, 8)})
    with pytest.raises(ValueError, match="labels"):
        one().forward_backward({"input_ids": ids, "texts": ["a", "b"]})
