"""A call that is late only because something else runs has its answer in the answer to its request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.http.server.raw_client import Wire, message, served

from twinkle_http.wire.envelopes import CALL_UPDATE, unpacked

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

SETTINGS = """
    import time
    from twinkle_http.server.calls import served_call
    from twinkle_http.server.clients import client_api
    client_api.DELAY_SECONDS = 20.0
    served_call.QUICK_SECONDS = 0.2  # of a method; its call is accepted after 2 ms all the same
"""


@pytest.mark.slow
def test_a_call_after_a_quick_one_is_waited_for(
    serving: Callable[..., AbstractContextManager[str]], tmp_path: Path
) -> None:
    def is_there(wire: Wire, *arguments: float, target: str = "of") -> bool:
        with wire.connected() as connection:
            connection.sendall(wire.call(message(*arguments, target=target)))
            status, body = wire.answer(connection)
            assert status == 200
            update = unpacked(body, CALL_UPDATE)
            assert update.accepted is not update.done
            return update.done

    with served(serving, tmp_path, "time.sleep(arguments[0])", SETTINGS) as first:
        second = Wire(f"http://{first.host}", first.process)
        is_there(first, 0.5)
        assert any(is_there(second, target="ready") for _ in range(10_000))
        assert not is_there(first, 0.5), "its last method was slow, or runs"
        assert is_there(second, target="ready"), "its last method was quick: it waits for the other client's"
        assert not is_there(first, 0.5)
        is_there(second, 0.5)
        assert not is_there(second, 0.5), "its last method was slow"
