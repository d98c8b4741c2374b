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

from twinkle import concat
from twinkle.engines import Rollouts
from twinkle_engines.batches.columns import names_of

FORMS: dict[str, Any] = {
    "texts": lambda numbers: [f"t{n}" for n in numbers],
    "matrices": lambda numbers: torch.tensor(numbers).double()[:, None, None] * torch.ones(2, 3),
    "arrays": lambda numbers: np.array(numbers, dtype=np.int32)[:, None] + np.arange(2),
    "table": lambda numbers: {"a": list(numbers), "b": np.array(numbers)},
}
"""Columns of a user's own, of any row type."""
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
    rollouts = Rollouts(
        **tokens,
        counts=counts,
        columns={"answer": [f"a{i}" for i in range(len(counts))]} if draw(st.booleans()) else None,
        prompts=[f"p{i}" for i in range(len(counts))] if texts else None,
        completions=[f"c{i}" for i in range(len(lengths))] if texts else None,
        finish=["stop" if i % 2 else "length" for i in range(len(lengths))] if texts else None,
    )
    for by in ("token", "sequence", "row"):
        for name in draw(st.sets(st.sampled_from(sorted(FORMS)))):
            sizes = {"token": lengths, "sequence": [len(lengths)], "row": [len(counts)]}[by]
            parts = [FORMS[name]([next(numbers) for _ in range(n)]) for n in sizes]
            rollouts = rollouts.with_column(f"{by}-{name}", parts if by == "token" else parts[0], by=by)
    return rollouts


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value


def as_rows(rollouts: Rollouts) -> list[dict[str, Any]]:
    """Return each row as plain lists, by a plain loop."""
    rows: list[dict[str, Any]] = []
    own = {
        by: {name: rollouts.column(name) for name in columns if "-" in name}
        for by, columns in (("sequence", {**rollouts.tokens, **rollouts.sequences}), ("row", rollouts.rows))
    }
    sequence = 0
    for i, count in enumerate(rollouts.counts):
        row: dict[str, Any] = {name: column[i] for name, column in rollouts.columns.items() if "-" not in name}
        row |= {name: plain(column[i]) for name, column in own["row"].items()}
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
            one |= {name: plain(column[sequence]) for name, column in own["sequence"].items()}
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
    assert concat(parts) == rollouts


@settings(deadline=None, max_examples=60)  # a busy machine is no failure
@given(ragged(), st.sampled_from(["left", "right"]))
def test_padded_columns_are_those_of_a_loop(rollouts: Rollouts, side: Any) -> None:
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
    rows_of = [row for row, group in enumerate(rollouts.groups()) for _ in group]
    for name in (name for name in names_of(rollouts) if "-" in name):
        by, form = name.split("-")
        right = rollouts.column(name)
        right = [right[row] for row in rows_of] if by == "row" else right
        is_padded = by == "token" and form not in ("texts", "table")
        for i, one in enumerate(right if form != "table" or by == "token" else []):
            found = padded[name][i]
            assert plain(found[padded["attention_mask"][i].bool()] if is_padded else found) == plain(one)
    assert padded["input_ids"].shape == (len(rollouts.lengths), width)
    assert padded["attention_mask"].sum(1).tolist() == rollouts.lengths
    positions = [
        row[there.bool()].tolist() for row, there in zip(padded["position_ids"], padded["attention_mask"], strict=True)
    ]
    assert positions == [list(range(n)) for n in rollouts.lengths]


@settings(deadline=None, max_examples=60)  # a busy machine is no failure
@given(ragged(), st.integers(0, 12))
def test_packs_hold_each_sequence_whole(rollouts: Rollouts, length: int) -> None:
    longest = max(rollouts.lengths, default=0)
    if longest > length:
        with pytest.raises(ValueError, match=f"{longest} tokens, but max_tokens={length}"):
            rollouts.pack(length)
        return
    packs = rollouts.pack(length)
    seen = []
    for pack in packs:
        by_token = [one for name, one in pack.items() if isinstance(one, torch.Tensor) and "-" not in name]
        assert {one.shape for one in by_token} == {pack["input_ids"].shape}
        for name in (name for name in ("token-matrices", "token-arrays") if name in pack):
            assert len(pack[name][0]) == pack["input_ids"].shape[1]
        assert pack["input_ids"].shape[0] == 1 and 0 < pack["input_ids"].shape[1] <= length
        for i in sorted(set(pack["sequence_ids"][0].tolist())):
            here = pack["sequence_ids"] == i
            assert torch.equal(pack["input_ids"][here], rollouts.ids[i])
            assert pack["position_ids"][here].tolist() == list(range(rollouts.lengths[i]))
            seen.append(i)
    assert sorted(seen) == [i for i, n in enumerate(rollouts.lengths) if n]
    assert sum(a.shape[1] + b.shape[1] <= length for a in map(_ids, packs) for b in map(_ids, packs) if a is not b) == 0


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


def test_one_number_a_sequence_becomes_a_column_by_token() -> None:
    rollouts = Rollouts([[1, 2, 3], [4]], rewards=[1, 0.5], advantages=[2, 3], versions=[7, 8])
    assert rollouts.rewards is not None and rollouts.advantages is not None and rollouts.versions is not None
    assert [part.tolist() for part in rollouts.rewards] == [[0, 0, 1], [0.5]]
    assert rollouts.sequence_rewards().tolist() == [1, 0.5]
    assert [part.tolist() for part in rollouts.advantages] == [[2, 2, 2], [3]]
    assert [part.tolist() for part in rollouts.versions] == [[7, 7, 7], [8]]
    by_token = Rollouts([[1, 2, 3], [4]], returns=[[4, 5, 6], [7]], teacher=[[0, 1, 2], [3]])
    assert [part.tolist() for part in by_token.column("returns")] == [[4, 5, 6], [7]]
    assert [part.tolist() for part in by_token.column("teacher")] == [[0, 1, 2], [3]]


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"ids": [[1, 2]], "mask": [[1]]}, r"mask\[0\] has the shape \(1,\), but ids\[0\] has 2"),
        ({"ids": [[1, 2]], "logprobs": [[0.0, 0.0], [0.0]]}, "logprobs has 2 entries, but there are 1 sequences"),
        ({"ids": [[1, 2]], "logprobs": [0.5]}, r"logprobs\[0\] has the shape \(\)"),
        ({"ids": [[[1, 2]]]}, r"ids\[0\] has the shape \(1, 2\)"),
        ({"ids": [[1], [2]], "counts": [1]}, "add up to 1 sequences, but ids has 2"),
        ({"ids": [[1], [2]], "counts": [3, -1]}, "counts"),
        ({"ids": [[1], [2]], "counts": [2], "prompts": ["a", "b"]}, "prompts has 2 entries, but there are 1 rows"),
        ({"ids": [[1], [2]], "counts": [2], "finish": ["stop"]}, "finish has 1 entries, but there are 2 sequences"),
        ({"ids": [[1]], "columns": {"answer": []}}, "answer has 0 entries"),
        ({"ids": [[]], "rewards": [1.0]}, "one value a token"),
        ({"ids": [[1.5], [2.0]]}, "whole numbers"),
        ({"ids": [[1, 2]], "mask": [[2, 0]]}, "0 and 1"),
    ],
)
def test_lengths_that_disagree_are_refused(columns: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Rollouts(**columns)


@pytest.mark.parametrize("flags", [[True, False], True, np.array([True, False])])
def test_flags_choose_no_rows(flags: Any) -> None:
    with pytest.raises(TypeError, match=r"got .*True"):
        Rollouts([[1, 2], [3]])[flags]


def test_parts_with_other_columns_are_refused_unless_they_are_empty() -> None:
    plain, rich = Rollouts([[1]]), Rollouts([[2]], rewards=[1.0], columns={"answer": [3]})
    assert concat([plain[:0], rich, plain[:0]]) == rich
    for parts in ([plain, rich], [plain, Rollouts([[2]], prompts=["x"])], [rich, rich.replace(rewards=None)]):
        with pytest.raises(ValueError, match="has the same columns"):
            concat(parts)
    with pytest.raises(IndexError):
        plain[1]


def test_temperatures_stand_by_sequence_and_at_each_token_of_a_rectangle() -> None:
    made = Rollouts([[1, 2, 3], [4], [5, 6]], counts=[2, 1], temperatures=[0.5, 1, 2])
    assert made.temperatures == [0.5, 1.0, 2.0] and made[1].temperatures == [2.0]
    assert concat([made[1], made[0]]).temperatures == [2.0, 0.5, 1.0]
    padded = made.pad("left")
    assert padded["temperatures"].tolist() == [[0.5] * 3, [1.0] * 3, [1.0, 2.0, 2.0]]
    assert made.pack(4)[0]["temperatures"].shape == made.pack(4)[0]["input_ids"].shape
    assert made.replace(temperatures=None).temperatures is None and made != made.replace(temperatures=[1, 1, 2])
    with pytest.raises(ValueError, match="temperatures"):
        concat([made, made.replace(temperatures=None)])
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
    assert concat(list(whole)) == whole
    assert whole[list(range(0, count, 2))].columns["row"] == list(range(0, count, 2))
    assert pickle.loads(pickle.dumps(whole[5])) == whole[5]


def test_a_column_is_read_by_its_name_and_one_that_is_not_there_is_named() -> None:
    made = Rollouts([[1, 2], [3]], counts=[2], prompts=["x"]).with_column("weight", [[0.5, 1], [2]])
    assert [one.tolist() for one in made.column("weight")] == [[0.5, 1.0], [2.0]] and made.column("prompts") == ["x"]
    assert made.with_column("weight", [7, 8], by="sequence").column("weight") == [7, 8]
    assert made.with_column("mask", [[0, 1], [1]]).mask is not None
    for act, told in (
        (lambda: made.column("other"), "no column 'other', but ids, weight, prompts"),
        (lambda: made.with_column("weight", [[1], [2]]), r"weight\[0\] has 1 rows, but ids\[0\] has 2 tokens"),
        (lambda: made.with_column("a", [1], by="sequence"), "a has 1 entries, but there are 2 sequences"),
        (lambda: made.with_column("rewards", [1, 2], by="sequence"), "'rewards' has an entry by token, not 'sequence'"),
        (lambda: made.with_column("a", [1], by="tokens"), "not 'tokens'"),  # type: ignore[arg-type]  # as users write it
        (lambda: made.replace(weight=[[1, 2], [3]]), r"none: use with_column\(\)"),
    ):
        with pytest.raises((KeyError, TypeError, ValueError), match=told):
            act()
