"""Columns of a collator's mapping: any whole numbers, and refusals by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import DataCollatorWithFlattening

from twinkle.engines import TransformersModel
from twinkle_engines.batches.padded import columns_of
from twinkle_engines.batches.whole_columns import OF_THE_WHOLE
from twinkle_remote.protocol.marks import SPEC

IDS = [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    "form",
    [
        list,
        tuple,
        np.array,
        torch.tensor,
        lambda rows: np.array(rows, dtype=np.uint16),
        lambda rows: torch.tensor(rows, dtype=torch.int16),
        lambda rows: [torch.tensor(row, dtype=torch.uint8) for row in rows],
        lambda rows: [np.array(row, dtype=np.uint32) for row in rows],
        lambda rows: np.array([np.array(row) for row in rows] + [None], dtype=object)[:2],
    ],
)
def test_ids_of_any_whole_numbers_are_int64(form: Any) -> None:
    made = columns_of({"input_ids": form(IDS), "texts": ["a", "b"], "ragged": [[1], [1, 2]], "size": torch.tensor(3)})
    assert made["input_ids"].dtype == torch.int64 and made["input_ids"].tolist() == IDS and [*made] == ["input_ids"]


@pytest.mark.parametrize(
    "values",
    [[[1], [1, 2]], ["a", "b"], [1.5, 2.5], [[1.5], [2.5]], torch.tensor(3), [1, 2], [torch.ones(1), torch.ones(2)]],
)
@pytest.mark.parametrize("name", ["input_ids", "labels"])
def test_what_is_no_rectangle_of_whole_numbers_is_named(values: Any, name: str) -> None:
    with pytest.raises(ValueError, match=f"column {name}"):
        columns_of({"input_ids": IDS, name: values})


def test_what_a_flattening_collator_says_of_the_whole_is_no_column() -> None:
    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    made = collate([{"input_ids": [2, 3, 4], "labels": [2, 3, 4]}, {"input_ids": [5, 6], "labels": [5, 6]}])
    assert {"cu_seq_lens_q", "max_length_k"} <= made.keys()
    assert columns_of(made).keys() == {"input_ids", "labels", "position_ids", "seq_idx"}
    spec = getattr(TransformersModel.forward_backward, SPEC)
    assert set(OF_THE_WHOLE) == set(spec.whole_columns("batch"))
