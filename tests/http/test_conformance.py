"""The public suite over HTTP: a server of threads in another process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance import CHECKS, SIZES, Harness
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
        with session("http", groups=groups, **options):
            folder = str(tmp_path_factory.mktemp("gates"))
            yield Harness("http", names, folder, options, served=True, patience=1.0)


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
def test_conformance(check: Callable[[Harness], None], harness: Harness) -> None:
    if harness.takes(check):
        check(harness)


def test_few_checks_are_left_out_and_each_says_why(harness: Harness) -> None:
    left = [check for check in CHECKS if not harness.takes(check)]
    assert len(left) <= 8 and all(map(left_out, left))
