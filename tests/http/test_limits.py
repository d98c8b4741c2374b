"""What the clients of one token may hold at a time, over all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.http.test_faults import TOKEN, gated, hold, running, until

from twinkle_remote import get, session, submit
from twinkle_remote.errors import TwinkleError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


def test_a_token_may_hold_so_much_and_no_more(tmp_path: Path) -> None:
    guard = tmp_path / "guard"
    limits = {"components": 2, "calls": 3, "results": 40}
    with running(limits=limits) as server, session("http", address=server.address, token=TOKEN):
        component, _ = gated(), gated()
        with pytest.raises(TwinkleError, match="this token may have 2 components"):
            gated()
        waiting = [submit(component.after, str(guard)) for _ in range(3)]
        with pytest.raises(TwinkleError, match="this token may have 3 calls in flight"):
            component.echo(b"x")
        guard.touch()
        assert get(waiting) == ["done"] * 3
        held: list[Any] = []
        waiting.clear()
        assert component.echo(b"x") == b"x"
        with pytest.raises(TwinkleError, match="this token may have 40 results"):
            until(lambda: hold(component, held, b"x"))
        assert 20 < len(held) <= 40
        held.clear()
        assert component.echo(b"x") == b"x"
