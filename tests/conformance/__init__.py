"""Checks of the behaviour of every backend, for its authors.

Start the backend with a group of CPU workers for each of `SIZES`, describe it in a `Harness`, and run the checks::

    groups = [DeviceGroup(f"of-{size}", size, "CPU") for size in SIZES]
    with twinkle_remote.session("mine", groups=groups):
        harness = Harness("mine", {size: f"of-{size}" for size in SIZES}, folder)
        for check in checks_for(harness):
            check(harness)

Checks need no test framework, leave the groups usable, and may run in any order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conformance.checks import (
    cancelling,
    collecting,
    coroutines,
    dispatching,
    failing,
    handing,
    objects,
    streaming,
    tools,
)
from tests.conformance.harness import SIZES, Harness

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CHECKS: tuple[Callable[[Harness], None], ...] = (
    *dispatching.CHECKS,
    *collecting.CHECKS,
    *handing.CHECKS,
    *cancelling.CHECKS,
    *failing.CHECKS,
    *objects.CHECKS,
    *streaming.CHECKS,
    *coroutines.CHECKS,
    *tools.CHECKS,
)


def checks_for(harness: Harness) -> Sequence[Callable[[Harness], None]]:
    """The checks that apply to a backend, given where its workers run and which libraries are installed."""
    return [check for check in CHECKS if harness.takes(check)]


__all__ = ["CHECKS", "SIZES", "Harness", "checks_for"]
