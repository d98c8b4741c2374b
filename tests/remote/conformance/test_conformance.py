"""The public suite over the backends of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from twinkle_mesh import DeviceGroup
from twinkle_remote import session
from twinkle_remote.call.pending import circles
from twinkle_remote.conformance import CHECKS, SIZES, Harness, checks_for
from twinkle_remote.conformance.checks import circles as checks_of_circles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="module", params=["local", "threads"])
def harness(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    mode: str = request.param
    groups = [DeviceGroup(f"of-{size}", size, "CPU") for size in SIZES]
    names = {size: f"of-{size}" for size in SIZES}
    with pytest.MonkeyPatch.context() as patch, session(mode, groups=groups):
        patch.setattr(circles, "FIRST_SECONDS", 0.1)  # in place of 0.5: each circle is looked for twice
        patch.setattr(circles, "_GRACE_SECONDS", 1.0)  # in place of 4.0: the first one may hold up its event loop
        patch.setattr(checks_of_circles, "LONG", 0.4)
        yield Harness(mode, names, str(tmp_path_factory.mktemp("gates")), in_process=mode == "local")


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
def test_conformance(check: Callable[[Harness], None], harness: Harness) -> None:
    if harness.takes(check):
        check(harness)


def test_few_checks_need_workers_apart(harness: Harness) -> None:
    assert len(checks_for(harness)) >= 0.8 * len(CHECKS)
