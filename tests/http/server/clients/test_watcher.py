"""The watcher of calls looks at all of them now and then, whatever signals its thread gets."""

from __future__ import annotations

import threading

import pytest
from tests.remote.signals import goes_on

from twinkle_http.server.clients.watcher import Watcher
from twinkle_remote import session
from twinkle_remote.sessions.current import running


@pytest.mark.slow
def test_signals_do_not_stop_its_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_IDLE_SECONDS", "_LOOK_SECONDS"):
        monkeypatch.setattr(f"twinkle_http.server.clients.watcher.{name}", 0.025)
    with session("local"):
        watcher = Watcher(running())
        (thread,) = (one for one in threading.enumerate() if one.name == "twinkle-http-watcher")
        try:
            assert goes_on(thread, lambda: watcher._look_at, 40)
        finally:
            watcher.end()
        assert not thread.is_alive()
