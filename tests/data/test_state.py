"""States: what they hold, and which are refused."""

import json
from typing import Any

import pytest

from twinkle_data import DataLoader, StateMismatchError

ROWS = list(range(20))


def test_a_state_is_small_and_json() -> None:
    loader = DataLoader(ROWS, batch_size=4, shuffle=True, seed=7, fingerprint="mine")
    next(iter(loader))
    state = loader.state_dict()
    assert (
        json.loads(json.dumps(state))
        == state
        == {
            "order": "feistel8-v1",
            "seed": 7,
            "length": 20,
            "fingerprint": "mine",
            "epoch": 0,
            "position": 4,
        }
    )


@pytest.mark.parametrize(
    ("other", "options", "word"),
    [
        ([*ROWS[:-1], 99], {}, "fingerprint"),
        (ROWS[:-1], {}, "length: saved 20, here 19"),
        (ROWS, {"seed": 1}, "seed: saved 0, here 1"),
        (ROWS, {"shuffle": False}, "order"),
    ],
)
def test_the_state_of_something_else_is_refused(other: Any, options: Any, word: str) -> None:
    state = DataLoader(ROWS, batch_size=4, shuffle=True).state_dict()
    with pytest.raises(StateMismatchError, match=word):
        DataLoader(other, **{"batch_size": 4, "shuffle": True, **options}).load_state_dict(state)


@pytest.mark.parametrize(
    "change", [{"epoch": -1}, {"epoch": True}, {"position": 21}, {"position": "1"}, {"position": 1.0}, None]
)
def test_what_is_no_state_is_refused(change: Any) -> None:
    loader = DataLoader(ROWS, batch_size=4)
    wrong: Any
    for wrong in ({**loader.state_dict(), **change},) if change else (None, {}, [1], {"epoch": 0, "position": 0}):
        with pytest.raises(StateMismatchError):
            loader.load_state_dict(wrong)
    assert loader.position == 0


def test_the_rest_that_fills_no_batch_is_the_next_epoch() -> None:
    loader = DataLoader(ROWS, batch_size=16)
    loader.load_state_dict({**loader.state_dict(), "position": 8})
    assert (loader.epoch, loader.position) == (1, 0)
