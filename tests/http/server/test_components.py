"""Live components of a session: its clients call them, and release none."""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.subjects.components import Counter
from tests.conformance.subjects.echo import Echo

from twinkle_remote import get, release, serve, session
from twinkle_remote.errors import PlacementError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

TOKEN = "a token for tests"
SERVER = """
    import sys
    from twinkle_mesh import DeviceGroup
    from twinkle_remote import get, serve, session
    from tests.conformance.subjects.components import Counter
    from tests.conformance.subjects.echo import Echo

    with session("threads", groups=[DeviceGroup("two", 2, "CPU")]):
        counter = Counter(10, remote_group="two", instance_id="shared")
        with serve([counter, Echo], port=0, token=sys.argv[1]) as server:
            print(server.address, flush=True)
            sys.stdin.read()
        assert get(counter.add()) == 14, "it lives on"
"""


def test_a_live_component_is_called_by_its_id(serving: Callable[..., AbstractContextManager[str]]) -> None:
    kinds: Any = {"counter": Counter, "echo": Echo}
    with serving(SERVER, TOKEN) as address:
        for expected in (11, 12):
            with session("http", address=address, token=TOKEN):
                counter = kinds["counter"](remote_group="two", instance_id="shared")
                assert get(counter.add()) == expected
                with pytest.raises(PlacementError, match="is a Counter"):
                    kinds["echo"](remote_group="two", instance_id="shared")
                release(counter)
        url, headers = f"{address}/v1/Counter/shared/add", {"Authorization": f"Bearer {TOKEN}"}
        with urllib.request.urlopen(urllib.request.Request(url, b"{}", headers), timeout=30.0) as answer:
            assert json.loads(answer.read())["result"] == 13


def test_what_is_no_class_and_no_component_is_refused(threads: None) -> None:
    with pytest.raises(TypeError, match="remote classes and components"):
        serve([5], port=0, token=TOKEN)
