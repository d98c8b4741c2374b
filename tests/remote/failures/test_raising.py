"""The text of a failed call stays readable, however many ranks failed."""

from __future__ import annotations

import pytest

from twinkle_remote.errors import RemoteCallError
from twinkle_remote.failures.raising import raise_failures
from twinkle_remote.protocol.failure import Failure


@pytest.mark.parametrize(("ranks", "rest"), [(65, ""), (10_000, " and 9935 more")])
def test_equal_failures_name_some_of_their_ranks(ranks: int, rest: str) -> None:
    failures = [
        Failure(f"actor[{rank}/{ranks}]", "host", "ValueError", "no", method="Actor.step") for rank in range(ranks)
    ]
    with pytest.raises(RemoteCallError) as caught:
        raise_failures("Actor.step", "actor", failures, "loop.py:7")
    text = str(caught.value)
    assert f"and {ranks - 1} more of group 'actor'" in text
    assert f"actor[63/{ranks}], actor[64/{ranks}]{rest}: ValueError: no" in text
    assert f"actor[65/{ranks}]" not in text
