"""The public suite over HTTP: a server of threads in another process, and some of it with a served local session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance import CHECKS, SIZES, Harness
from tests.conformance.checks import collecting, coroutines, streaming
from tests.conformance.harness import left_out
from tests.conformance.subjects.served import VALUE_TYPES

from twinkle_mesh import DeviceGroup
from twinkle_remote import register_type, session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

pytestmark = pytest.mark.slow
SERVER = """
    import sys
    from twinkle_mesh import DeviceGroup
    from twinkle_remote import register_type, serve, session
    from tests.conformance import SIZES
    from tests.conformance.subjects.served import VALUE_TYPES, served_classes

    for kind in VALUE_TYPES:
        register_type(kind)
    with session(sys.argv[2], groups=[DeviceGroup(f"of-{size}", size, "CPU") for size in SIZES]):
        with serve(served_classes(), port=0, token=sys.argv[1]) as server:
            print(server.address, flush=True)
            sys.stdin.read()
"""
TOKEN = "a token for tests"


SOME = (
    collecting.flatten_counts_each_data_rank_once,
    *coroutines.CHECKS,
    streaming.streaming_without_ahead_makes_the_calls_of_the_loop,
    streaming.streaming_goes_through_stages_one_after_the_other,
)
"""Where each component is one object of the server's process."""


CASES = [*[("threads", check) for check in CHECKS], *[("local", check) for check in SOME]]


@pytest.fixture(scope="module")
def harness(
    request: pytest.FixtureRequest,
    serving: Callable[..., AbstractContextManager[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Harness]:
    for kind in VALUE_TYPES:
        register_type(kind)
    names = {size: f"of-{size}" for size in SIZES}
    groups = [DeviceGroup(f"of-{size}", size, "CPU") for size in SIZES]
    with serving(SERVER, TOKEN, request.param) as address:
        options: dict[str, Any] = {"address": address, "token": TOKEN}
        with session("http", groups=groups, **options):
            folder = str(tmp_path_factory.mktemp("gates"))
            local, patience = (True, 5.0) if request.param == "local" else (False, 1.0)
            yield Harness("http", names, folder, options, served=True, in_process=local, patience=patience)


@pytest.mark.parametrize(
    ("harness", "check"), CASES, indirect=["harness"], ids=[f"{mode}-{check.__name__}" for mode, check in CASES]
)
def test_conformance(harness: Harness, check: Callable[[Harness], None]) -> None:
    if harness.takes(check):
        check(harness)


def test_few_checks_are_left_out_and_each_says_why() -> None:
    assert sum(map(bool, map(left_out, CHECKS))) <= 8
