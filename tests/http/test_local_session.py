"""A served local session: each component is one object of the server's process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance import SIZES, Harness
from tests.conformance.checks import collecting, coroutines, streaming
from tests.conformance.subjects.served import VALUE_TYPES

from twinkle_mesh import DeviceGroup
from twinkle_remote import register_type, session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

SERVER = """
    import sys
    from twinkle_mesh import DeviceGroup
    from twinkle_remote import register_type, serve, session
    from tests.conformance import SIZES
    from tests.conformance.subjects.served import VALUE_TYPES, served_classes

    for kind in VALUE_TYPES:
        register_type(kind)
    with session("local", groups=[DeviceGroup(f"of-{size}", size, "CPU") for size in SIZES]):
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


@pytest.fixture(scope="module")
def harness(
    serving: Callable[..., AbstractContextManager[str]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Harness]:
    for kind in VALUE_TYPES:
        register_type(kind)
    groups = [DeviceGroup(f"of-{size}", size, "CPU") for size in SIZES]
    with serving(SERVER, TOKEN) as address:
        options: dict[str, Any] = {"address": address, "token": TOKEN}
        with session("http", groups=groups, **options):
            folder = str(tmp_path_factory.mktemp("gates"))
            names = {size: f"of-{size}" for size in SIZES}
            yield Harness("http", names, folder, options, served=True, in_process=True, patience=5.0)


@pytest.mark.parametrize("check", SOME, ids=[check.__name__ for check in SOME])
def test_checks(check: Callable[[Harness], None], harness: Harness) -> None:
    check(harness)
