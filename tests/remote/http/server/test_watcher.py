"""The watcher of calls looks at all of them now and then, whatever signals its thread gets."""

from __future__ import annotations

import threading

from tests.remote.signals import goes_on

from twinkle_remote import session
from twinkle_remote.http.server.watcher import Watcher
from twinkle_remote.sessions.current import running


def test_signals_do_not_stop_its_looks() -> None:
    with session("local"):
        watcher = Watcher(running())
        (thread,) = (one for one in threading.enumerate() if one.name == "twinkle-http-watcher")
        try:
            assert goes_on(thread, lambda: watcher._look_at, 10)
        finally:
            watcher.end()
        assert not thread.is_alive()
