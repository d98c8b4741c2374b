"""Columns that a model would read in another way than they were meant are refused, and absent ones are absent."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tiny_models import Build, ragged, sgd

from twinkle.engines import TransformersModel
from twinkle_engines.batches.packed import given_packs
from twinkle_engines.batches.padded import check_labelled, columns_of, has_packs

FORMS: list[Any] = [torch.bool, torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.float64]


@pytest.mark.parametrize("name", ["attention_mask", "mask"])
@pytest.mark.parametrize("seed", range(20))
def test_a_mask_is_of_0_and_1_in_any_dtype(name: str, seed: int) -> None:
    draw = random.Random(seed)
    batch: dict[str, Any] = dict(ragged(3, seed))
    flags = batch["attention_mask"]
    same = columns_of({**batch, name: flags.to(draw.choice(FORMS))})
    assert torch.equal(same[name].bool(), flags.bool())
    other = flags.to(draw.choice([torch.int32, torch.int64, torch.float32]))
    place = draw.randrange(3), draw.randrange(12)
    other[place] = draw.choice([2, 3, -1, -100] + [0.5, float("nan"), -1e9] * other.is_floating_point())
    with pytest.raises(ValueError, match=f"{name} has"):
        columns_of({**batch, name: other})


@pytest.mark.parametrize("name", ["attention_mask", "labels", "mask", "position_ids"])
def test_a_column_has_one_value_for_each_token(name: str) -> None:
    batch = ragged(3, 1)
    for shape in ((3, 11), (3, 1), (3,), (3, 12, 1), (12, 3)):
        with pytest.raises(ValueError, match=f"column {name}"):
            columns_of({**batch, name: torch.ones(shape, dtype=torch.long)})


@pytest.mark.parametrize("name", ["attention_mask", "labels", "mask", "position_ids", "temperatures"])
def test_none_is_no_column_and_what_is_no_column_is_refused(name: str) -> None:
    batch = ragged(3, 1)
    assert columns_of({**batch, name: None}).keys() == columns_of({k: v for k, v in batch.items() if k != name}).keys()
    wrong: list[Any] = [0.5, "x", {}, object(), torch.tensor(1), ["a", "b", "c"]]
    for value in wrong:
        with pytest.raises(ValueError, match=f"column {name}"):
            columns_of({**batch, name: value})
    given: dict[str, Any] = {"input_ids": batch["input_ids"], "labels": None, "mask": None, "attention_mask": None}
    check_labelled(given)
    assert not has_packs({**given, "position_ids": None})
    with pytest.raises(ValueError, match="labels"):
        check_labelled({**batch, "labels": None})


@pytest.mark.parametrize("name", ["input_ids", "labels"])
def test_ids_are_no_flags(name: str) -> None:
    batch = ragged(3, 1)
    with pytest.raises(ValueError, match=f"column {name}"):
        columns_of({**batch, name: batch["input_ids"] > 3})


@pytest.mark.parametrize("seed", range(20))
def test_positions_of_packs_count_from_0(seed: int) -> None:
    draw = random.Random(seed)
    lengths = [draw.randint(1, 5) for _ in range(4)]
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    ids = torch.ones_like(positions)
    (pack,) = given_packs({"input_ids": ids, "position_ids": positions})
    assert int(pack["sequence_ids"].max()) == len(lengths) - 1
    wrong = positions.clone()
    place = draw.randrange(wrong.shape[1])
    wrong[0, place] += draw.choice([1, 2, -1 if wrong[0, place] > 1 else 3])
    with pytest.raises(ValueError, match="positions 0, 1, 2"):
        list(given_packs({"input_ids": ids, "position_ids": wrong}))


def test_what_a_model_reads_and_an_engine_does_not_give_it_is_refused() -> None:
    model = TransformersModel(Build("qwen2"), optimizer=sgd)
    batch: dict[str, Any] = ragged(3, 1)
    loss = model.forward_backward(batch)["loss"]
    assert model.forward_backward({**batch, "inputs_embeds": None})["loss"] == loss
    for function in (model.forward_backward, model.logprobs):
        for given in (torch.ones(3, 12, 32), torch.zeros(3, 12, 32)):  # it is not fetched, so not looked at either
            with pytest.raises(ValueError, match="inputs_embeds"):
                function({**batch, "inputs_embeds": given})
