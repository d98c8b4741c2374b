"""The suite of twinkle-remote for backends over Ray: fifteen workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.conformance import CHECKS, SIZES, Harness

from twinkle_mesh import DeviceGroup
from twinkle_remote import session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def harness(ray_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    groups = [DeviceGroup(f"of-{size}", size, "CPU") for size in SIZES]
    with session("ray", groups=groups):
        folder = tmp_path_factory.mktemp("gates")
        yield Harness("ray", {size: f"of-{size}" for size in SIZES}, str(folder))


@pytest.mark.ray
@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
def test_conformance(harness: Harness, check: Callable[[Harness], None]) -> None:
    assert harness.takes(check)
    check(harness)
