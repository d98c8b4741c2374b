"""The public suite over the backends of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.conformance import CHECKS, checks_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance import Harness


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
def test_conformance(check: Callable[[Harness], None], harness: Harness) -> None:
    if harness.takes(check):
        check(harness)


def test_few_checks_need_workers_apart(harness: Harness) -> None:
    assert len(checks_for(harness)) >= 0.7 * len(CHECKS)
