"""Columns of a collator's mapping: any whole numbers, and refusals by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from twinkle.engines.padded import columns_of

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
