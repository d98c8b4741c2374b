"""Any form of batch is cut into the same sequences; what a model would read in another way is refused."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import ragged, sequences

from twinkle.engines import Rollouts
from twinkle_engines.batches.columns import fit
from twinkle_engines.batches.micro_batches import micro_batches


def seen(batch: Any, size: int | None = None, max_tokens: int | None = None) -> list[Any]:
    """Each sequence: its ids, its targets, and what counts, by its number in the batch."""
    found: dict[int, list[Any]] = {}
    for part in micro_batches(batch, size, max_tokens):
        rows = [dict(part.rows(part.columns[name])) for name in ("input_ids", "targets", "mask")]
        for number in part.sequences:
            found[number] = [row[number][1:].tolist() for row in rows]
            if "attention_mask" in part.columns:
                assert part.columns["attention_mask"].sum(1).tolist() == list(part.lengths)
    return [found[number] for number in sorted(found)]


@pytest.mark.parametrize("seed", range(8))
def test_all_forms_have_the_same_sequences(seed: int) -> None:
    draw = random.Random(seed)
    batch = ragged(5, seed, draw.choice(["left", "right"]))
    pairs = sequences(batch)
    rollouts = Rollouts([ids for ids, _ in pairs], [counts for _, counts in pairs])
    right = [[ids[1:].tolist(), ids[1:].tolist(), counts[1:].tolist()] for ids, counts in pairs]
    places = torch.cat([torch.arange(len(ids)) for ids, _ in pairs])[None]
    labels = torch.cat([torch.where(counts, ids, -100) for ids, counts in pairs])[None]
    pack = {"input_ids": torch.cat([ids for ids, _ in pairs])[None], "position_ids": places, "labels": labels}
    forms: list[Any] = [batch, rollouts, pack, [rollouts[:2], rollouts[2:2], rollouts[2:]], rollouts.pad("left")]
    forms[-1] = {name: column for name, column in forms[-1].items() if name != "position_ids"}
    for form in forms:
        for size, max_tokens in ((None, None), (draw.randint(1, 4), None), (None, draw.randint(12, 30))):
            assert seen(form, size, max_tokens) == right


def test_micro_batches_count_sequences_and_keep_pairs() -> None:
    rollouts = Rollouts([[1, 2]] * 10, counts=[4, 4, 2])
    assert [len(part.sequences) for part in micro_batches(rollouts, 3, None)] == [3, 3, 3, 1]
    in_pairs = micro_batches(rollouts.replace(counts=[2] * 5), 3, None, in_pairs=True)
    pairs = [list(part.sequences) for part in in_pairs]
    assert pairs == [[i, i + 1] for i in range(0, 10, 2)]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"attention_mask": [[1, 2, 1]]}, "attention_mask has"),
        ({"attention_mask": [[1, 1]]}, "attention_mask has"),
        ({"labels": [[1, 2]]}, "column labels"),
        ({"labels": [[1], [1, 2]]}, "column labels"),
        ({"temperatures": [[1.0, 1.0]]}, "column temperatures"),
        ({"position_ids": [[1, 2, 3]]}, "positions 0, 1, 2"),
    ],
)
def test_columns_of_another_form_are_named(columns: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        list(micro_batches({"input_ids": [[1, 2, 3]], **columns}, None, None))


@given(st.lists(st.integers(0, 12), max_size=40), st.integers(0, 9))
def test_packs_are_those_of_first_fit_decreasing(lengths: list[int], more: int) -> None:
    length = max(lengths, default=0) + more
    packs: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not lengths[i]:
            continue
        place = next((pack for pack in packs if sum(lengths[k] for k in pack) + lengths[i] <= length), None)
        if place is None:
            packs.append([i])
        else:
            place.append(i)
    assert fit(lengths, length) == [sorted(pack) for pack in packs]
