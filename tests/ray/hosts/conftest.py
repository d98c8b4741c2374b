"""Hosts for the tests of this folder, where the machine allows them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent / "tools"))
from hosts import Hosts, why_not

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def hosts_here() -> None:
    """Skips where this machine cannot have hosts."""
    reason = why_not()
    if reason is not None:
        pytest.skip(f"not run: {reason}")


@pytest.fixture(scope="module")
def make_hosts(hosts_here: None) -> Iterator[Callable[[], Hosts]]:
    """Makes three hosts, which end with the module's tests."""
    made: list[Hosts] = []

    def make() -> Hosts:
        made.append(Hosts())
        return made[-1]

    yield make
    for one in made:
        one.close()
