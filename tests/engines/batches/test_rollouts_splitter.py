"""Rollouts as tables: rows by their numbers, columns by their names, on workers and here."""

from __future__ import annotations

import random
from typing import Any

import pytest

from twinkle_engines.batches.rollouts import Rollouts
from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import concat, get, on, remote_class, remote_function, select, session, submit, take


@remote_class()
class Holder:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def hold(self, rollouts: Rollouts) -> Rollouts:
        return rollouts


def rollouts(rng: random.Random, **further: Any) -> Rollouts:
    counts = [rng.randrange(3) for _ in range(rng.randint(1, 6))]
    ids = [[rng.randrange(9) for _ in range(rng.randint(1, 4))] for _ in range(sum(counts))]
    rewards = [rng.random() for _ in ids]
    columns = {
        "source": [rng.randrange(5) for _ in counts],
        **{name: [fill] * len(counts) for name, fill in further.items()},
    }
    texts = [str(own) for own in ids]
    prompts = [f"prompt {row}" for row in range(len(counts))]
    return Rollouts(ids, rewards=rewards, counts=counts, columns=columns, prompts=prompts, completions=texts)


def test_tables_of_rollouts_are_those_of_their_values() -> None:
    with session("threads", groups=[DeviceGroup("holder", 3, "CPU")]):
        holder = on("holder", DeviceMesh.from_sizes(dp_size=3)).create(Holder)
        for number in range(60):
            rng = random.Random(number)
            plain = [rollouts(rng), rollouts(rng, **({"more": 1} if rng.random() < 0.5 else {}))]
            lazy = [submit(holder.hold, one) for one in plain]
            total = sum(map(len, plain))
            rows = [rng.randrange(total) for _ in range(rng.randint(0, 6))]
            names = rng.sample(["rewards", "source", "prompts", "completions"], rng.randint(1, 3))
            acts: list[Any] = [
                lambda values, rows=rows: take(concat(values), rows),
                lambda values, names=names: select(concat(values), *names),
                lambda values, rows=rows, names=names: select(take(concat(values), rows), *names),
            ]
            for act in acts:
                table = act(lazy)
                assert get(table) == act(plain), (number, rows, names)
                assert get(submit(holder.hold, table)) == act(plain), (number, rows, names)


def test_ids_and_counts_stay_and_other_columns_go() -> None:
    one = rollouts(random.Random(0))
    kept = select(one, "rewards", "prompts")
    assert set(kept.tokens) == {"ids", "rewards"}
    assert (kept.counts, kept.lengths, kept.columns) == (one.counts, one.lengths, {})
    assert kept.prompts == one.prompts and kept.completions is None
    with pytest.raises(KeyError, match="logprobs"):
        select(one, "logprobs")
