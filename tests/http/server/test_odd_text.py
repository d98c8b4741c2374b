"""Text that is no Unicode, as file names may be, ends neither a call for ever nor the calls behind it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.http.server.subjects import Odd

from twinkle_remote import get, on, session, stream, submit
from twinkle_remote.errors import DispatchError, RemoteCallError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

TOKEN = "a token for tests"
ROOT = str(Path(__file__).parents[3])
SECONDS = 30.0
SERVER = """
    import sys
    sys.path.insert(0, sys.argv[2])
    from tests.http.server.subjects import ONE, THREE, Odd
    from twinkle_remote import serve, session

    with session("threads", groups=[ONE, THREE]):
        with serve([Odd], port=0, token=sys.argv[1]) as server:
            print(server.address, flush=True)
            sys.stdin.read()
"""


@pytest.fixture
def odd(serving: Callable[..., AbstractContextManager[str]]) -> Iterator[Odd]:
    with serving(SERVER, TOKEN, ROOT) as address, session("http", address=address, token=TOKEN):
        yield on("one").create(Odd)


def test_an_error_of_a_worker_arrives(odd: Odd) -> None:
    for _ in range(2):
        with pytest.raises(LookupError, match=r"a name.*udcff") as caught:
            get(submit(odd.raises), timeout=SECONDS)
        assert isinstance(caught.value, RemoteCallError)


def test_an_error_before_the_call_arrives_and_later_calls_are_made(odd: Odd) -> None:
    for _ in range(2):
        with pytest.raises(LookupError, match=r"a name.*udcff"):
            odd.dispatched(1)
    assert get(submit(odd.rows, [1]), timeout=SECONDS) == [1]


def test_a_result_is_refused_by_its_reader(odd: Odd) -> None:
    with pytest.raises(DispatchError, match="lone surrogates"):
        get(submit(odd.gives), timeout=SECONDS)
    assert get(submit(odd.rows, [1]), timeout=SECONDS) == [1]


def test_a_row_of_a_stream_that_fails_is_skipped(odd: Odd) -> None:
    with stream([[1], [2], [3]], odd.rows, rows=1, ahead=3, on_error="skip") as batches:
        assert [get(batch, timeout=SECONDS) for batch in batches] == [[1], [3]]
