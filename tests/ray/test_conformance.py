"""The public suite of twinkle-remote over Ray: fifteen workers, called directly and through a tree of agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest

from twinkle_mesh import DeviceGroup
from twinkle_ray.by_node import choice
from twinkle_remote import session
from twinkle_remote.conformance import CHECKS, SIZES, Harness
from twinkle_remote.conformance.checks import (
    collecting,
    coroutines,
    dispatching,
    ends,
    failing,
    handing,
    limits,
    objects,
    pieces,
    tools,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.long

# What agents gather and tell, beyond what test_calls_by_node.py breaks: order, failures, limits, hand-over, items, and
# what workers call. Values are split and joined as in direct calls, and the driver plans which row goes where.
PLANNED = (
    handing.handing_over_gives_each_rank_the_same_rows,
    handing.rows_that_are_divided_by_costs_come_in_order,
    handing.frames_keep_the_columns_that_are_not_read,
    handing.a_stream_reads_and_adds_columns,
)
BY_AGENTS = (
    *(collecting.flatten_counts_each_data_rank_once, collecting.sum_and_mean_count_each_data_rank_once),
    *(dispatching.slice_dp_splits_by_data_rank_on_every_mesh, dispatching.execute_first_runs_on_the_first_worker),
    *(check for check in handing.CHECKS if check not in PLANNED),
    *(objects.releases_are_known_to_other_workers, tools.many_calls_with_dropped_results_run_in_order),
    *(*failing.CHECKS, *limits.CHECKS, *ends.CHECKS, *coroutines.CHECKS, *pieces.CHECKS),
)


@pytest.fixture(scope="module")
def harness(
    ray_cluster: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Harness]:
    calls: Literal["direct", "by_node"] = "direct" if request.param == "direct" else "by_node"
    groups = [DeviceGroup(f"of-{size}", size, "CPU") for size in SIZES]
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "tree":  # each rank of a group has an agent, and two agents stand below each
            patch.setattr(choice, "FAN_OUT", 2)
            patch.setattr(choice, "RANKS_OF_AGENT", 1)
        with session("ray", groups=groups, calls=calls):
            folder = tmp_path_factory.mktemp("gates")
            yield Harness("ray", {size: f"of-{size}" for size in SIZES}, str(folder), {"calls": calls})


@pytest.mark.ray
@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
@pytest.mark.parametrize("harness", ["direct"], indirect=True)
def test_direct_calls(harness: Harness, check: Callable[[Harness], None]) -> None:
    assert harness.takes(check)
    check(harness)


@pytest.mark.ray
@pytest.mark.parametrize("check", BY_AGENTS, ids=[check.__name__ for check in BY_AGENTS])
@pytest.mark.parametrize("harness", ["tree"], indirect=True)
def test_calls_through_a_tree_of_agents(harness: Harness, check: Callable[[Harness], None]) -> None:
    assert harness.takes(check)
    check(harness)
