"""The public suite over the backends of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.conformance import CHECKS, SIZES, Harness, checks_for

from twinkle_mesh import DeviceGroup
from twinkle_remote import session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="module", params=["local", "threads"])
def harness(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    mode: str = request.param
    groups = [DeviceGroup(f"of-{size}", size, "CPU") for size in SIZES]
    names = {size: f"of-{size}" for size in SIZES}
    with session(mode, groups=groups):
        yield Harness(mode, names, str(tmp_path_factory.mktemp("gates")), in_process=mode == "local")


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
def test_conformance(check: Callable[[Harness], None], harness: Harness) -> None:
    if harness.takes(check):
        check(harness)


def test_few_checks_need_workers_apart(harness: Harness) -> None:
    assert len(checks_for(harness)) >= 0.8 * len(CHECKS)
