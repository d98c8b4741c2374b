"""The public suite over HTTP: a server of threads in another process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from twinkle_mesh import DeviceGroup
from twinkle_remote import register_type, session
from twinkle_remote.conformance import CHECKS, SIZES, Harness
from twinkle_remote.conformance.checks import circles, ends
from twinkle_remote.conformance.subjects.served import VALUE_TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

pytestmark = pytest.mark.slow
SERVER = """
    import sys
    from twinkle_mesh import DeviceGroup
    from twinkle_remote import register_type, serve, session
    from twinkle_remote.call.pending import circles
    from twinkle_remote.conformance import SIZES
    from twinkle_remote.conformance.subjects.served import VALUE_TYPES, served_classes

    circles.FIRST_SECONDS = 0.1  # in place of 0.5: each circle is looked for twice
    circles._GRACE_SECONDS = 1.0  # in place of 4.0: for one that raises first, but holds up its event loop
    for kind in VALUE_TYPES:
        register_type(kind)
    with session("threads", groups=[DeviceGroup(f"of-{size}", size, "CPU") for size in SIZES]):
        with serve(served_classes(), port=0, token=sys.argv[1]) as server:
            print(server.address, flush=True)
            sys.stdin.read()
"""
TOKEN = "a token for tests"


@pytest.fixture(scope="module")
def harness(
    serving: Callable[..., AbstractContextManager[str]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Harness]:
    for kind in VALUE_TYPES:
        register_type(kind)
    names = {size: f"of-{size}" for size in SIZES}
    groups = [DeviceGroup(f"of-{size}", size, "CPU") for size in SIZES]
    with serving(SERVER, TOKEN) as address:
        options: dict[str, Any] = {"address": address, "token": TOKEN}
        with pytest.MonkeyPatch.context() as patch, session("http", groups=groups, **options):
            patch.setattr(circles, "LONG", 0.4)
            folder = str(tmp_path_factory.mktemp("gates"))
            yield Harness("http", names, folder, options, served=True, patience=1.0)


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
def test_conformance(check: Callable[[Harness], None], harness: Harness) -> None:
    if harness.takes(check):
        check(harness)


def test_only_checks_of_the_end_of_a_session_are_left_out(harness: Harness) -> None:
    """What these two check cannot be true of a client's end.

    They check that the end of a session waits for the calls that workers have made themselves, and raises what
    failed in one of them. Over HTTP that session is the server's, and it does both when the server's program ends
    it. A client's end comes earlier, and the calls of workers are not its own: a worker runs tasks for clients of
    several tokens, and what it tells of its calls (`OwnCalls`) names methods and groups, not who had called it. A
    client that waited for all of them would wait for strangers, perhaps for ever, and one that was told of their
    failures would learn what another tenant calls, and with what. What a client ends is released at once, and calls
    to it afterwards fail.
    """
    left = [check.__name__ for check in CHECKS if not harness.takes(check)]
    assert left == [check.__name__ for check in ends.CHECKS]
