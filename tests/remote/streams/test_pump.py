"""A pump looks at everything now and then, whatever signals its thread gets."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from tests.remote.signals import goes_on

from twinkle_remote import session
from twinkle_remote.sessions.current import running
from twinkle_remote.streams.pump import Pump

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.protocol.backend import Reply


class Counting:
    """An engine that counts its steps."""

    def __init__(self) -> None:
        self.steps = 0
        self.error: BaseException | None = None

    def step(self, done: Sequence[Reply]) -> None:
        self.steps += 1

    def loop_ready(self) -> bool:
        return False

    def waiting_for(self) -> Sequence[Reply]:
        return ()

    def fail(self, error: BaseException) -> None:
        self.error = error


@pytest.mark.slow
def test_signals_do_not_stop_its_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinkle_remote.streams.pump._LOOK_SECONDS", 0.025)
    with session("local"):
        engine = Counting()
        pump = Pump(engine, running().backend, "x.py:1")
        pump.start()
        (thread,) = (one for one in threading.enumerate() if one.name == "twinkle-stream")
        try:
            assert goes_on(thread, lambda: engine.steps, 40)
        finally:
            pump.close()
            pump.join(10.0)
        assert engine.error is None and not thread.is_alive()
