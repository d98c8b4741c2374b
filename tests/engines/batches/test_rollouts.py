"""Rollouts against plain loops: cut, joined, padded, packed, and back, for every ragged shape."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from twinkle.engines import Rollouts

COLUMNS = ("mask", "logprobs", "ref_logprobs", "rewards", "advantages", "versions")


@st.composite
def ragged(draw: st.DrawFn) -> Rollouts:
    """Rollouts of any shape, rows without sequences and sequences without tokens included."""
    counts = draw(st.lists(st.integers(0, 3), max_size=5))
    lengths = draw(st.lists(st.integers(0, 6), min_size=sum(counts), max_size=sum(counts)))
    numbers = iter(range(1, 10_000))
    tokens: dict[str, Any] = {"ids": [torch.tensor([next(numbers) for _ in range(n)]).long() for n in lengths]}
    for name in draw(st.sets(st.sampled_from(COLUMNS))):
        made = [torch.tensor([float(next(numbers)) for _ in range(n)]) for n in lengths]
        tokens[name] = [part % 2 == 0 for part in made] if name == "mask" else made
    texts = draw(st.booleans())
    return Rollouts(
        **tokens,
        counts=counts,
        columns={"answer": [f"a{i}" for i in range(len(counts))]} if draw(st.booleans()) else None,
        prompts=[f"p{i}" for i in range(len(counts))] if texts else None,
        completions=[f"c{i}" for i in range(len(lengths))] if texts else None,
        finish=["stop" if i % 2 else "length" for i in range(len(lengths))] if texts else None,
    )


def as_rows(rollouts: Rollouts) -> list[dict[str, Any]]:
    """Return each row as plain lists, by a plain loop."""
    rows: list[dict[str, Any]] = []
    sequence = 0
    for i, count in enumerate(rollouts.counts):
        row: dict[str, Any] = {name: column[i] for name, column in rollouts.columns.items()}
        row["prompt"] = None if rollouts.prompts is None else rollouts.prompts[i]
        row["sequences"] = []
        for _ in range(count):
            one: dict[str, Any] = {"ids": rollouts.ids[sequence].tolist()}
            for name in COLUMNS:
                column = getattr(rollouts, name)
                one[name] = None if column is None else column[sequence].tolist()
            for name in ("completions", "finish"):
                column = getattr(rollouts, name)
                one[name] = None if column is None else column[sequence]
            row["sequences"].append(one)
            sequence += 1
        rows.append(row)
    return rows


@settings(deadline=None, max_examples=60)  # a busy machine is no failure
@given(ragged(), st.data())
def test_cut_and_joined_rows_are_those_of_a_list(rollouts: Rollouts, data: st.DataObject) -> None:
    rows = as_rows(rollouts)
    ends = st.none() | st.integers(-7, 7)
    key = slice(data.draw(ends), data.draw(ends), data.draw(st.none() | st.sampled_from([1, 2, -1, -2])))
    assert as_rows(rollouts[key]) == rows[key]
    assert [as_rows(row) for row in rollouts] == [[row] for row in rows]
    chosen = data.draw(st.lists(st.integers(0, max(0, len(rows) - 1)), max_size=4 if rows else 0))
    assert as_rows(rollouts[chosen]) == [rows[i] for i in chosen]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    bounds = [0, *cuts, len(rows)]
    parts = [rollouts[start:stop] for start, stop in itertools.pairwise(bounds)]
    assert Rollouts.concat(parts) == rollouts


@settings(deadline=None, max_examples=60)  # a busy machine is no failure
@given(ragged(), st.sampled_from(["left", "right"]))
def test_padded_columns_are_those_of_a_loop_and_come_back(rollouts: Rollouts, side: Any) -> None:
    padded = rollouts.pad(side, pad_id=-1)
    width = max(rollouts.lengths, default=0)
    for name, key, filler in [("ids", "input_ids", -1), *[(name, name, 0) for name in COLUMNS]]:
        column = getattr(rollouts, name)
        if column is None:
            assert key not in padded
            continue
        for i, sequence in enumerate(column):
            rest = [filler] * (width - len(sequence))
            want = rest + sequence.tolist() if side == "left" else sequence.tolist() + rest
            assert padded[key][i].tolist() == want
    assert padded["input_ids"].shape == (len(rollouts.lengths), width)
    assert padded["attention_mask"].sum(1).tolist() == rollouts.lengths
    positions = [
        row[there.bool()].tolist() for row, there in zip(padded["position_ids"], padded["attention_mask"], strict=True)
    ]
    assert positions == [list(range(n)) for n in rollouts.lengths]
    assert rollouts.unpad(padded) == rollouts


@settings(deadline=None, max_examples=60)  # a busy machine is no failure
@given(ragged(), st.integers(0, 12), st.randoms())
def test_packs_hold_each_sequence_whole_and_come_back(rollouts: Rollouts, length: int, random: Any) -> None:
    longest = max(rollouts.lengths, default=0)
    if longest > length:
        with pytest.raises(ValueError, match=f"{longest} tokens, but a pack has length={length}"):
            rollouts.pack(length)
        return
    packs = rollouts.pack(length)
    seen = []
    for pack in packs:
        assert {values.shape for values in pack.values()} == {pack["input_ids"].shape}
        assert pack["input_ids"].shape[0] == 1 and 0 < pack["input_ids"].shape[1] <= length
        for i in sorted(set(pack["sequence_ids"][0].tolist())):
            here = pack["sequence_ids"] == i
            assert torch.equal(pack["input_ids"][here], rollouts.ids[i])
            assert pack["position_ids"][here].tolist() == list(range(rollouts.lengths[i]))
            seen.append(i)
    assert sorted(seen) == [i for i, n in enumerate(rollouts.lengths) if n]
    assert sum(a.shape[1] + b.shape[1] <= length for a in map(_ids, packs) for b in map(_ids, packs) if a is not b) == 0
    random.shuffle(packs)
    assert rollouts.unpack(packs) == rollouts


def _ids(pack: dict[str, torch.Tensor]) -> torch.Tensor:
    return pack["input_ids"]


@settings(deadline=None, max_examples=60)  # a busy machine is no failure
@given(ragged())
def test_copies_and_pickles_are_equal(rollouts: Rollouts) -> None:
    assert copy.copy(rollouts) == rollouts
    assert pickle.loads(pickle.dumps(rollouts)) == rollouts
    assert rollouts.replace() == rollouts


def test_a_pickled_slice_does_not_carry_the_other_rows() -> None:
    rollouts = Rollouts([torch.zeros(1000, dtype=torch.int64) for _ in range(100)])
    assert len(pickle.dumps(rollouts[:1])) < 20_000


def test_columns_of_a_model_come_back_ragged() -> None:
    rollouts = Rollouts([[1, 2, 3], [4]], counts=[2])
    padded = rollouts.pad("left")
    scores = padded["input_ids"] * 10.0
    fresh = rollouts.unpad({"attention_mask": padded["attention_mask"], "logprobs": scores})
    assert fresh.logprobs is not None
    assert [part.tolist() for part in fresh.logprobs] == [[10, 20, 30], [40]]
    assert fresh.replace(logprobs=None) == rollouts
    packs = rollouts.pack(4)
    kept = ("position_ids", "sequence_ids")
    scored = [{**{key: pack[key] for key in kept}, "logprobs": pack["input_ids"] * 10.0} for pack in packs]
    assert rollouts.unpack(scored) == fresh


def test_gradients_flow_through_pads_and_packs() -> None:
    weight = torch.ones(3, requires_grad=True)
    rollouts = Rollouts([[1, 2], [3]], logprobs=[weight[:2], weight[2:]])
    padded = rollouts.unpad(rollouts.pad("right")).logprobs
    packed = rollouts.unpack(rollouts.pack(3)).logprobs
    assert padded is not None and packed is not None
    (gradient,) = torch.autograd.grad(torch.cat([*padded, *packed]).sum(), weight)
    assert gradient.tolist() == [2, 2, 2]


def test_one_number_a_sequence_becomes_a_column_by_token() -> None:
    rollouts = Rollouts([[1, 2, 3], [4]], rewards=[1, 0.5], advantages=[2, 3], versions=[7, 8])
    assert rollouts.rewards is not None and rollouts.advantages is not None and rollouts.versions is not None
    assert [part.tolist() for part in rollouts.rewards] == [[0, 0, 1], [0.5]]
    assert rollouts.sequence_rewards().tolist() == [1, 0.5]
    assert [part.tolist() for part in rollouts.advantages] == [[2, 2, 2], [3]]
    assert [part.tolist() for part in rollouts.versions] == [[7, 7, 7], [8]]


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"ids": [[1, 2]], "mask": [[1]]}, r"mask\[0\] has 1 values, but ids\[0\] has 2"),
        ({"ids": [[1, 2]], "logprobs": [[0.0, 0.0], [0.0]]}, "logprobs has 2 entries, but there are 1 sequences"),
        ({"ids": [[1, 2]], "logprobs": [0.5]}, r"logprobs\[0\] has the shape \(\)"),
        ({"ids": [[[1, 2]]]}, r"ids\[0\] has the shape \(1, 2\)"),
        ({"ids": [[1], [2]], "counts": [1]}, "add up to 1 sequences, but ids has 2"),
        ({"ids": [[1], [2]], "counts": [3, -1]}, "counts"),
        ({"ids": [[1], [2]], "counts": [2], "prompts": ["a", "b"]}, "prompts has 2 entries, but there are 1 rows"),
        ({"ids": [[1], [2]], "counts": [2], "finish": ["stop"]}, "finish has 1 entries, but there are 2 sequences"),
        ({"ids": [[1]], "columns": {"answer": []}}, r"columns\['answer'\] has 0 entries"),
        ({"ids": [[]], "rewards": [1.0]}, "the sequence is empty"),
    ],
)
def test_lengths_that_disagree_are_refused(columns: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Rollouts(**columns)


@pytest.mark.parametrize("flags", [[True, False], True, np.array([True, False])])
def test_flags_choose_no_rows(flags: Any) -> None:
    with pytest.raises(TypeError, match=r"got .*True.* chooses by flags"):
        Rollouts([[1, 2], [3]])[flags]


@pytest.mark.parametrize("rows", [[1, 0], np.array([1, 0]), torch.tensor([1, 0]), (np.int64(1), torch.tensor(0))])
def test_numbers_of_any_library_choose_rows(rows: Any) -> None:
    rollouts = Rollouts([[1, 2], [3]])
    assert [ids.tolist() for ids in rollouts[rows].ids] == [[3], [1, 2]]
    assert [ids.tolist() for ids in rollouts[rows[0]].ids] == [[3]]


def test_mappings_of_other_sequences_are_refused() -> None:
    rollouts = Rollouts([[1, 2], [3]])
    with pytest.raises(ValueError, match=r"2 sequences of \[2, 2\] tokens"):
        rollouts.unpad({"attention_mask": torch.ones(2, 2)})
    with pytest.raises(ValueError, match="needs its attention_mask"):
        rollouts.unpad({"logprobs": torch.ones(2, 2)})
    with pytest.raises(ValueError, match="entropy is none of them"):
        rollouts.unpad({**rollouts.pad("left"), "entropy": torch.ones(2, 2)})
    with pytest.raises(ValueError, match=r"the shape of the attention_mask, \(2, 2\)"):
        rollouts.unpad({**rollouts.pad("left"), "logprobs": torch.ones(2, 1)})
    with pytest.raises(ValueError, match="not each of the 3 of these once"):
        rollouts.unpack(rollouts.pack(2)[:1])
    with pytest.raises(ValueError, match="no packs"):
        rollouts.unpack([])
    with pytest.raises(ValueError, match="'left' or 'right', not 'top'"):
        rollouts.pad("top")  # type: ignore[arg-type]  # what is tested


def test_parts_with_other_columns_are_refused_unless_they_are_empty() -> None:
    plain, rich = Rollouts([[1]]), Rollouts([[2]], rewards=[1.0], columns={"answer": [3]})
    assert Rollouts.concat([plain[:0], rich, plain[:0]]) == rich
    for parts in ([plain, rich], [plain, Rollouts([[2]], prompts=["x"])], [rich, rich.replace(rewards=None)]):
        with pytest.raises(ValueError, match="has the same columns"):
            Rollouts.concat(parts)
    with pytest.raises(ValueError, match="no parts"):
        Rollouts.concat([])
    with pytest.raises(IndexError):
        plain[1]


def test_its_text_tells_sizes_and_shows_a_few_rows() -> None:
    rollouts = Rollouts(
        [[1, 2, 3], [4, 5], [6], [7], [8]],
        mask=[[0, 1, 1], [0, 1], [1], [1], [1]],
        rewards=[1, 0, 0, 1, 1],
        counts=[2, 1, 1, 1],
        prompts=["2+2?", "p" * 500, "", "hidden"],
        completions=["4", "5", "x", "y", "z"],
        finish=["stop", "length", "stop", "stop", "stop"],
    )
    text = repr(rollouts)
    assert "4 rows, 5 sequences, 8 tokens (1 to 3 a sequence), 6 by the model, mean reward 0.6" in text
    assert "1 ended by length, 4 ended by stop" in text
    assert "0: '2+2?' -> '4' (and 1 more)" in text
    assert "and 1 more row" in text and "hidden" not in text and len(text) < 600
    assert repr(rollouts[:0]).startswith("Rollouts(0 rows, 0 sequences, 0 tokens")


def test_temperatures_stand_by_sequence_and_at_each_token_of_a_rectangle() -> None:
    made = Rollouts([[1, 2, 3], [4], [5, 6]], counts=[2, 1], temperatures=[0.5, 1, 2])
    assert made.temperatures == [0.5, 1.0, 2.0] and made[1].temperatures == [2.0]
    assert Rollouts.concat([made[1], made[0]]).temperatures == [2.0, 0.5, 1.0]
    padded = made.pad("left")
    assert padded["temperatures"].tolist() == [[0.5] * 3, [1.0] * 3, [1.0, 2.0, 2.0]]
    assert made.unpad(padded) == made and made.unpack(made.pack(4)) == made
    assert made.pack(4)[0]["temperatures"].shape == made.pack(4)[0]["input_ids"].shape
    assert made.replace(temperatures=None).temperatures is None and made != made.replace(temperatures=[1, 1, 2])
    with pytest.raises(ValueError, match="temperatures"):
        Rollouts.concat([made, made.replace(temperatures=None)])
    for wrong in ([0, 1, 1], [1, float("nan"), 1], [1, 1, float("inf")], [1, 1]):
        with pytest.raises(ValueError, match="temperatures"):
            made.replace(temperatures=wrong)


@pytest.mark.timeout(60)
@pytest.mark.slow
def test_many_rows_are_cut_and_joined_in_linear_time() -> None:
    count = 32_000  # of a quadratic walk, some minutes
    whole = Rollouts(
        [[i % 7, 1] for i in range(count)], columns={"row": list(range(count))}, prompts=[str(i) for i in range(count)]
    )
    assert Rollouts.concat(list(whole)) == whole
    assert whole[list(range(0, count, 2))].columns["row"] == list(range(0, count, 2))
    assert pickle.loads(pickle.dumps(whole[5])) == whole[5]


@pytest.mark.parametrize("form", [np.uint16, np.int16, np.uint8, np.int64, np.uint32])
def test_ids_of_any_whole_numbers_are_those_that_models_look_up(form: Any) -> None:
    made = Rollouts([np.array([1, 2, 3], dtype=form), np.array([], dtype=form)], versions=[np.uint16(1), 2])
    assert made.tokens["ids"].dtype == torch.int64 and made.tokens["ids"].tolist() == [1, 2, 3]
    assert made.pad()["input_ids"].dtype == torch.int64


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"columns": {"answer": "ab"}}, "answer"),
        ({"columns": {"answer": np.array(3)}}, "answer"),
        ({"prompts": "ab"}, "prompts"),
        ({"completions": 3}, "completions"),
        ({"logprobs": ["a", "b"]}, "logprobs"),
        ({"ids": [[1.5], [2.0]]}, "ids"),
        ({"ids": [["a"], ["b"]]}, "ids"),
    ],
)
def test_what_is_no_column_is_named(columns: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Rollouts(**{"ids": [[1], [2]], **columns})


def test_marks_of_truncated_sampling_are_cut_and_joined_with_rows_that_have_none() -> None:
    plain = Rollouts([[1, 2, 3], [4], [5, 6]], counts=[2, 1])
    made = plain.replace(truncated_sampling=[np.True_, torch.tensor(False), False])  # type: ignore[list-item]  # libraries' own flags
    assert made.truncated_sampling == [True, False, False] and made[1].truncated_sampling is None
    joined = Rollouts.concat([plain, made[0], made[1]])
    assert joined.truncated_sampling == [False, False, False, True, False, False]
    assert joined[2] == made[0] == pickle.loads(pickle.dumps(made))[0] and joined[:2] == plain
    assert made[[1, 0]].truncated_sampling == [False, True, False] and made[:0].truncated_sampling is None
    padded = made.pad("left")
    assert padded["truncated_sampling"].tolist() == [[True] * 3, [False] * 3, [False] * 3]
    assert made.unpad(padded) == made == made.unpack(made.pack(4))
    assert sum(int(pack["truncated_sampling"].sum()) for pack in made.pack(4)) == 3
    assert "truncated_sampling" not in plain.replace(truncated_sampling=[False] * 3).pad()
    for wrong in ([True], ["yes"] * 3, [None, 1, 0]):
        with pytest.raises(ValueError, match="truncated_sampling"):
            made.replace(truncated_sampling=wrong)  # type: ignore[arg-type]  # what is tested
