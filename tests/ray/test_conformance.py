"""The public suite of twinkle-remote over Ray: fifteen workers on a cluster of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from twinkle_remote.conformance import CHECKS
from twinkle_remote.conformance.checks import (
    collecting,
    coroutines,
    dispatching,
    ends,
    failing,
    handing,
    lifetimes,
    limits,
    pieces,
    tools,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from twinkle_remote.conformance import Harness

pytestmark = pytest.mark.long

SOURCE = """
    import sys
    import traceback

    from twinkle_mesh import DeviceGroup
    from twinkle_ray.by_node import choice
    from twinkle_remote import session
    from twinkle_remote.conformance import SIZES, Harness, checks_for

    chosen = sys.argv[3:]
    if sys.argv[2] == "in a tree":  # each rank of a group has an agent, and two agents stand below each
        vars(choice).update(FAN_OUT=2, RANKS_OF_AGENT=1)
    options = {"calls": "direct" if sys.argv[2] == "direct" else "by_node"}
    groups = [DeviceGroup(f"of-{size}", size, "CPU") for size in SIZES]
    with session("ray", groups=groups, **options):
        harness = Harness("ray", {size: f"of-{size}" for size in SIZES}, sys.argv[1], options)
        for check in checks_for(harness):
            if check.__name__ not in chosen:
                continue
            try:
                check(harness)
            except Exception:
                traceback.print_exc()
                print("failed:", check.__name__)
            else:
                print("passed:", check.__name__)
"""


# What agents gather and tell, beyond what test_calls_by_node.py breaks: order, failures, limits, hand-over, items, and
# what workers call. Values are split and joined as in direct calls.
BY_AGENTS = (
    *(collecting.flatten_counts_each_data_rank_once, collecting.sum_and_mean_count_each_data_rank_once),
    *(dispatching.slice_dp_splits_by_data_rank_on_every_mesh, dispatching.execute_first_runs_on_the_first_worker),
    *(check for check in handing.CHECKS if check is not handing.handing_over_gives_each_rank_the_same_rows),
    *(lifetimes.releases_are_known_to_other_workers, tools.many_calls_with_dropped_results_run_in_order),
    *(*failing.CHECKS, *limits.CHECKS, *ends.CHECKS, *coroutines.CHECKS, *pieces.CHECKS),
)


@pytest.mark.ray
@pytest.mark.parametrize(("calls", "checks"), [("direct", CHECKS), ("in a tree", BY_AGENTS)], ids=["direct", "tree"])
def test_conformance(
    program: Callable[..., Any], tmp_path: Any, calls: str, checks: Sequence[Callable[[Harness], None]]
) -> None:
    chosen = {check.__name__ for check in checks}
    out = program(SOURCE, str(tmp_path), calls, *chosen, OMP_NUM_THREADS="1").finish(timeout=290)
    passed = {line.removeprefix("passed: ") for line in out.splitlines() if line.startswith("passed: ")}
    assert passed == chosen, out
