"""Calls of one client are made in the order in which they were sent, whatever their size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.http.server.subjects import Noted

from twinkle_remote import get, on, session, submit

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

TOKEN = "a token for tests"
ROOT = str(Path(__file__).parents[3])
SERVER = """
    import sys
    sys.path.insert(0, sys.argv[2])
    from tests.http.server.subjects import ONE, THREE, Noted
    from twinkle_remote import serve, session

    with session("threads", groups=[ONE, THREE], max_in_flight=4):
        with serve([Noted], port=0, token=sys.argv[1]) as server:
            print(server.address, flush=True)
            sys.stdin.read()
"""


def test_calls_keep_their_order(serving: Callable[..., AbstractContextManager[str]]) -> None:
    with serving(SERVER, TOKEN, ROOT) as address, session("http", address=address, token=TOKEN):
        noted = on("three").create(Noted)
        results = []
        for number in range(0, 300, 3):
            results.append(submit(noted.note, number))
            results.append(submit(noted.note_list, [number + 1]))
            results.append(submit(noted.note, number=number + 2))
        get(results)
        assert get(noted.notes()) == list(range(300))
