"""The event loop makes small calls itself: in their order, without a wait, and nothing of a user runs on it."""

from __future__ import annotations

import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.http.server.subjects import Noted

from twinkle_remote import get, on, session, submit

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    Serving = Callable[..., AbstractContextManager[str]]

TOKEN = "a token for tests"
ROOT = str(Path(__file__).parents[3])
SERVER = """
    import sys
    sys.path.insert(0, sys.argv[2])
    from tests.http.server.subjects import ONE, THREE, Noted
    from twinkle_remote import serve, session

    with session(sys.argv[3], groups=[ONE, THREE] if sys.argv[3] == "threads" else [], max_in_flight=4):
        with serve([Noted], port=0, token=sys.argv[1]) as server:
            print(server.address, flush=True)
            sys.stdin.read()
"""
LOOP = "twinkle-http"


def test_small_and_other_calls_keep_their_order(serving: Serving) -> None:
    with serving(SERVER, TOKEN, ROOT, "threads") as address, session("http", address=address, token=TOKEN):
        noted = on("three").create(Noted)
        results = []
        for number in range(0, 300, 3):
            results.append(submit(noted.note, number))
            results.append(submit(noted.note_list, [number + 1]))
            results.append(submit(noted.note, number=number + 2))
        get(results)
        assert get(noted.notes()) == list(range(300))


@pytest.mark.slow
def test_nothing_of_a_user_runs_on_the_event_loop(serving: Serving) -> None:
    with serving(SERVER, TOKEN, ROOT, "threads") as address, session("http", address=address, token=TOKEN):
        noted = on("one").create(Noted)
        assert get(noted.thread()) != LOOP
        assert get(noted.dispatched_by(1)).startswith("twinkle-client-")
    with serving(SERVER, TOKEN, ROOT, "local") as address, session("http", address=address, token=TOKEN):
        assert get(on("any").create(Noted).thread()).startswith("twinkle-client-")


@pytest.mark.slow
def test_the_server_answers_others_while_a_client_waits_for_room(serving: Serving) -> None:
    with serving(SERVER, TOKEN, ROOT, "threads") as address, session("http", address=address, token=TOKEN):
        noted, quick = on("one").create(Noted), on("three").create(Noted)
        with ThreadPoolExecutor(8) as pool:
            began = time.monotonic()
            slow = [pool.submit(lambda: get(submit(noted.sleep, 0.5))) for _ in range(8)]  # 4 may be in flight
            longest = 0.0
            while time.monotonic() < began + 2.0:
                asked = time.monotonic()
                with urllib.request.urlopen(f"{address}/health", timeout=30.0) as answer:
                    assert answer.status == 204
                longest = max(longest, time.monotonic() - asked)
                time.sleep(0.02)
            assert longest < 0.45, "the event loop waited for a call"
            assert [one.result(60.0) for one in slow] == [0.5] * 8
            assert time.monotonic() - began >= 4.0
        assert get(quick.note(7)) == 7


def test_answers_of_several_ranks_and_failures_arrive(serving: Serving) -> None:
    with serving(SERVER, TOKEN, ROOT, "threads") as address, session("http", address=address, token=TOKEN):
        noted = on("three").create(Noted)
        for number in range(50):
            assert get(noted.rank_or_raise(number)) == [number] * 3
        with pytest.raises(ValueError, match="-1 is below 0"):
            get(noted.rank_or_raise(-1))
        with pytest.raises(TypeError, match="missing a required argument"):
            get(noted.note())  # type: ignore[call-arg]  # what is tested
