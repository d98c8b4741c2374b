"""Closing destroys what a collective opened, and nothing that another one still uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from twinkle_mesh import DeviceMesh
from twinkle_ray.collective import MeshCollective

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.processes


def build(rank: int, local: int = 2, **more: Any) -> MeshCollective:
    return MeshCollective(rank, 2, local, rank % local, "cpu", timeout=20.0, **more)


def works(collective: MeshCollective) -> bool:
    total = torch.ones(1)
    collective.all_reduce(total)
    return total.item() == collective.world_size


def parts(rank: int) -> None:
    whole = build(rank, tp_size=2, debug=True)
    everyone = whole.over(DeviceMesh.from_sizes(dp_size=2, device_type="cpu"), "dp")
    for part in (whole.local, whole.tp_world, whole.local.local, everyone):
        assert part is not whole and part.ranks == (0, 1)
        assert works(part) and works(whole)
        part.close()
        with part:
            pass
        assert works(part) and works(whole)
    whole.close()
    assert not dist.is_initialized()


def test_closing_a_part_closes_nothing(run_ranks: Callable[..., list[Any]]) -> None:
    run_ranks(2, parts)


def shared(rank: int, first_closes_first: bool) -> None:
    first = build(rank)
    second = build(rank)
    third = build(rank, mesh=first._mesh, process_group=first.local.process_group)
    order = [first, second, third] if first_closes_first else [third, second, first]
    for i, collective in enumerate(order):
        assert works(collective)
        collective.close()
        collective.close()
        assert dist.is_initialized() == (i < 2)
        assert all(works(other) for other in order[i + 1 :])


@pytest.mark.parametrize("first_closes_first", [True, False])
def test_a_group_lives_as_long_as_one_that_uses_it(
    run_ranks: Callable[..., list[Any]], first_closes_first: bool
) -> None:
    run_ranks(2, shared, first_closes_first)


def users_own(rank: int) -> None:
    whole = build(rank)
    dist.destroy_process_group()
    whole.close()
    dist.init_process_group("gloo")
    again = build(rank)
    again.close()
    assert dist.is_initialized()
    dist.barrier()
    dist.destroy_process_group()


def test_the_programs_own_groups_are_its_own(run_ranks: Callable[..., list[Any]]) -> None:
    run_ranks(2, users_own)
