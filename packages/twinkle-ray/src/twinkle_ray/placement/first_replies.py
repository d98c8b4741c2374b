"""The first replies of workers and agents that are starting: all of them within a time, or an error."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import ray

from twinkle_ray.cluster.places import HEAD
from twinkle_remote.errors import PlacementError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_ray.cluster.lost_nodes import LostNodes

_LOOK_SECONDS = 0.5


def get_within(
    refs: Sequence[Any],
    timeout: float,
    what: str,
    nodes: Sequence[str] = (),
    lost_nodes: LostNodes | None = None,
    look: Callable[[], None] | None = None,
) -> list[Any]:
    """Return the answers of workers that are starting.

    Args:
        refs: The answers.
        timeout: Seconds.
        what: Begin of the error's message.
        nodes: Ray's id of the node of each answer; empty where a lost node is not looked for.
        lost_nodes: The lost nodes.
        look: Called now and then meanwhile.

    Raises:
        PlacementError: One is late, or its worker or its node is lost.
    """
    until = time.monotonic() + timeout
    looks = look is not None or lost_nodes is not None
    try:
        while True:
            left = max(0.0, until - time.monotonic())
            try:
                answers: list[Any] = ray.get(list(refs), timeout=min(_LOOK_SECONDS, left) if looks else left)
            except ray.exceptions.GetTimeoutError:
                if time.monotonic() >= until:
                    raise
                _check_lost(refs, what, nodes, lost_nodes)
                if look is not None:
                    look()
            else:
                return answers
    except ray.exceptions.GetTimeoutError:
        pending = len(ray.wait(list(refs), num_returns=len(refs), timeout=0)[1])
        raise PlacementError(f"{what} within {timeout:g} s: {pending} of {len(refs)} have not answered") from None
    except ray.exceptions.RayError as error:
        raise PlacementError(f"{what}: {error}") from error


def _check_lost(refs: Sequence[Any], what: str, nodes: Sequence[str], lost_nodes: LostNodes | None) -> None:
    if lost_nodes is None or not lost_nodes.any_lost():
        return
    pending = set(ray.wait(list(refs), num_returns=len(refs), timeout=0, fetch_local=False)[1])
    for node in (HEAD, *(node for ref, node in zip(refs, nodes, strict=True) if ref in pending)):
        why = lost_nodes.lost(node)
        if why is not None:
            raise PlacementError(f"{what}: {why}")
