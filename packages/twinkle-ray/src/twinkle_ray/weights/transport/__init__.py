"""How bytes get from a source rank to a target rank: links that both ends work at once, and depots.

Names are bound to implementations here and nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_ray.weights.transport.inprocess import ProcessDepot
from twinkle_ray.weights.transport.protocol import Depot, Link, Post, Work
from twinkle_ray.weights.transport.shared import SharedDepot

if TYPE_CHECKING:
    import torch

    from twinkle_ray.weights.program import Route
    from twinkle_ray.weights.rendezvous import Board, Session

__all__ = ["Depot", "Link", "Post", "Work", "depot_for", "link_for"]


def depot_for(route: Route) -> Depot:
    """A depot for a route that needs no meeting of both ends."""
    if route == "process":
        return ProcessDepot()
    if route == "shared":
        return SharedDepot()
    raise ValueError(f"no depot is known as {route!r}")


def link_for(session: Session, board: Board, rank: int, device: torch.device) -> Link:
    """Join a session's group, which everybody has arrived for."""
    from twinkle_ray.weights.transport.gloo import GlooLink, address_towards

    host = address_towards(session.host, session.port)
    return GlooLink(board.group_store(), rank, session.size, timeout=session.timeout, host=host)
