"""Ids of requests in the errors of both sides and in the log of calls: nothing of a client is unescaped."""

from __future__ import annotations

import http.client
import json
import re
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from tests.conformance.subjects.components import Counter

from twinkle_remote import get, on, session

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

TOKEN = "a token for tests"
SERVER = """
    import logging
    import sys
    from twinkle_mesh import DeviceGroup
    from twinkle_remote import serve, session
    from tests.conformance.subjects.components import Counter

    tokens = {"ann": "a token for tests", "bob": "another token"}
    logging.basicConfig(level=logging.DEBUG, format="%(name)s %(levelname)s %(message)s")
    with session("threads", groups=[DeviceGroup("group", 2, "CPU")]):
        with serve([Counter], port=0, token=tokens) as server:
            print(server.address, flush=True)
            sys.stdin.read()
"""


def ask(address: str, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
    with closing(http.client.HTTPConnection(urlsplit(address).netloc, timeout=60.0)) as connection:
        given = {"authorization": f"Bearer {TOKEN}", **{key.replace("_", "-"): text for key, text in headers.items()}}
        connection.request(method, path, None if body is None else json.dumps(body), given)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_requests_have_ids_in_errors_and_logs_of_both_sides(
    serving: Callable[..., AbstractContextManager[str]], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with log.open("w") as errors, serving(SERVER, stderr=errors) as address:
        with session("http", address=address, token=TOKEN):
            counter = on("group").create(Counter)
            assert counter.add(3) == 3
            with pytest.raises(TypeError) as caught:
                get(counter.add("x"))  # type: ignore[arg-type]  # what is tested
            with pytest.raises(Exception, match="is not served") as refused:
                on("group").create(Unserved)
        of_call = re.search(
            r"called from .*test_access_log.py:\d+\n.*\n  request ([0-9a-f]{8}-\d+)", str(caught.value), re.DOTALL
        )
        of_refusal = re.search(r"\(request ([0-9a-f]{8}-\d+)\)", str(refused.value))
        assert of_call and of_refusal, (str(caught.value), str(refused.value))
        status, text = ask(address, "POST", "/v1/Counter", {"start": "x"})
        own = json.loads(text)["error"]["request"]
        assert status == 400 and re.fullmatch(r"[0-9a-f]{8}-\d+", own)
        assert ask(address, "POST", "/nothing", authorization="Bearer of bad news")[0] == 401
        evil = "/v1/Counter/%0aWARNING%20forged%1b%5b31m/%22x"
        assert ask(address, "POST", evil, {})[0] == 403
    lines = log.read_text(encoding="utf-8").splitlines()
    calls = [line for line in lines if line.startswith("twinkle.http.access INFO")]
    assert any(re.search(r"ann Counter.add done, \d\.\d{4} s, request [0-9a-f]{8}-\d+$", line) for line in calls), lines
    assert any(re.search(rf"ann Counter.add failed with TypeError, .*, request {of_call[1]}$", line) for line in calls)
    assert any(re.search(r"ann Counter.__init__ done", line) for line in calls)
    assert any("ann POST '/v1/Counter' 400 InvalidArguments" in line and own in line for line in calls)
    assert any("- POST '/nothing' 401 Token" in line for line in calls)
    assert any(r"'/v1/Counter/\nWARNING forged\x1b[31m/" in line for line in calls), calls
    assert not any(word in line for line in lines for word in (TOKEN, "bad news", "\x1b"))
    assert not any(line.startswith("WARNING forged") for line in lines)


class Unserved(Counter):
    """A class that the server does not serve."""
