"""Packs: they train as padded rows do, or are refused by what they cannot be."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from tiny_models import Build, logprobs_of, ragged, sequences, sgd
from torch.testing import assert_close

from twinkle.engines import Rollouts, TransformersModel

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


def one(family: str = "llama", **options: Any) -> TransformersModel:
    return TransformersModel(Build(family), **{"optimizer": sgd, **options})


@pytest.mark.parametrize("form", ["rows", "mappings", "list", "list of rollouts"])
def test_packs_are_as_padded_rows_are(form: str) -> None:
    batch = ragged(7, 1, "left")
    pairs = sequences(batch)
    rollouts = Rollouts([ids for ids, _ in pairs], [counts for _, counts in pairs])
    packs: Any = {
        "rows": batch,
        "mappings": rollouts.pack(40),
        "list": [rollouts[:3].pack(100)[0], batch_of(batch, slice(3, 5)), rollouts[5:]],
        "list of rollouts": [rollouts[:2], rollouts[2:2], rollouts[2:]],
    }[form]
    padded, packed = one("qwen3"), one("qwen3", max_tokens=20 if form == "rows" else None)
    for normalize in ("token", "sequence"):
        told = [
            model.forward_backward(given, normalize=normalize) for model, given in ((padded, batch), (packed, packs))
        ]
        assert told[1] == pytest.approx(told[0], rel=1e-5)
        assert packed.step() == pytest.approx(padded.step(), rel=1e-4)
    for own, other in zip(logprobs_of(packed, rollouts), logprobs_of(padded, rollouts), strict=True):
        assert_close(own, other, rtol=1e-3, atol=1e-4)


def batch_of(batch: Mapping[str, torch.Tensor], rows: slice) -> dict[str, torch.Tensor]:
    return {name: column[rows] for name, column in batch.items()}


@pytest.mark.parametrize(
    ("batch", "options", "message"),
    [
        ({"input_ids": [[1, 2]], "position_ids": [[1, 2]]}, {}, "positions 0, 1, 2"),
        (
            {"input_ids": [[1, 2, 3]]},
            {"max_tokens": 2},
            "a sequence has 3 tokens, but max_tokens=2: use max_tokens=3",
        ),
    ],
)
def test_packs_that_cannot_be_read_are_errors(batch: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        one(**options).forward_backward(batch)
