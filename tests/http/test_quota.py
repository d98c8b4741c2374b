"""The quota of a token: what its clients may hold at a time, over all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.http.test_faults import TOKEN, Gated, gated, hold, running, until

from twinkle_remote import get, serve, session, submit
from twinkle_remote.errors import TwinkleError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


def test_a_token_may_hold_so_much_and_no_more(tmp_path: Path) -> None:
    guard = tmp_path / "guard"
    quota = {"components": 2, "calls": 3, "results": 40, "bytes": 1_000_000}
    with running(quota=quota) as server, session("http", address=server.address, token=TOKEN):
        component, _ = gated(), gated()
        with pytest.raises(TwinkleError, match="this token may have 2 components"):
            gated()
        waiting = [submit(component.after, str(guard)) for _ in range(3)]
        with pytest.raises(TwinkleError, match="this token may have 3 calls in flight"):
            component.echo(b"x")
        guard.touch()
        assert get(waiting) == ["done"] * 3
        held: list[Any] = []
        with pytest.raises(TwinkleError, match="this token may have 1000000 bytes of results"):
            until(lambda: hold(component, held, np.zeros(400_000, np.uint8)))
        assert 2 <= len(held) <= 4
        held.clear()
        waiting.clear()
        assert component.echo(b"x") == b"x"
        with pytest.raises(TwinkleError, match="this token may have 40 results"):
            until(lambda: hold(component, held, b"x"))
        assert 20 < len(held) <= 40
        held.clear()
        assert component.echo(b"x") == b"x"


@pytest.mark.parametrize("quota", [{"calls": 0}, {"nothing": 1}, {"bytes": 1.5}])
def test_a_quota_is_checked(quota: dict[str, Any], threads: None) -> None:
    with pytest.raises(ValueError, match="quota="):
        serve([Gated], port=0, token=TOKEN, quota=quota)
