"""How bytes get from a source rank to a target rank: links that both ends work at once, and depots.

Names are bound to implementations here and nowhere else; what one of them needs (CUDA, Ray) is loaded when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_ray.weights.transport.protocol import BlockStore, Link, LinkMessage, Work

if TYPE_CHECKING:
    import torch

    from twinkle_ray.weights.messages import Route
    from twinkle_ray.weights.rendezvous.session import Session, SessionStore

__all__ = ["BlockStore", "Link", "LinkMessage", "Work", "block_store_for", "link_for"]


def block_store_for(route: Route, sync: str) -> BlockStore:
    """A depot for a route, for one rank of a sync."""
    if route == "process":
        from twinkle_ray.weights.transport.inprocess import ProcessBlockStore

        return ProcessBlockStore()
    if route == "shared":
        from twinkle_ray.weights.transport.shared import SharedBlockStore

        return SharedBlockStore()
    if route == "cuda_ipc":
        from twinkle_ray.weights.transport.cuda_ipc import CudaBlockStore

        return CudaBlockStore()
    assert route == "object_store", f"{route!r} is no depot"
    from twinkle_ray.weights.transport.object_store import RayBlockStore

    return RayBlockStore(sync)


def link_for(session: Session, board: SessionStore, rank: int, device: torch.device) -> Link:
    """Join a session's group, which everybody has arrived for."""
    store = board.group_store()
    if session.kind == "nccl":
        from twinkle_ray.weights.transport.nccl import NcclLink

        return NcclLink(store, rank, session.size, timeout=session.timeout, device=device)
    from twinkle_ray.weights.transport.gloo import GlooLink, address_towards

    host = address_towards(session.at.host, session.at.port)
    return GlooLink(store, rank, session.size, timeout=session.timeout, host=host)
