from __future__ import annotations

import pytest
import torch
from tiny_tokenizer import tiny_tokenizer

from twinkle_engines.batches.ends import ends_of


@pytest.mark.parametrize("told", [None, 5, [5], (5, 0), torch.tensor([5]), torch.tensor(5), [0, 5]])
def test_the_ends_are_those_of_the_config_and_of_the_tokenizer(told: object) -> None:
    assert sorted(ends_of(tiny_tokenizer(), told)) == ([0] if told is None else [0, 5])
    assert ends_of(None, None) == []
