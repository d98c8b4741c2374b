"""Transports of bytes from a source rank to a target rank: links for messages, and block stores for put and get.

Only this module names the implementations; it imports each of them, with what it needs (CUDA, Ray), on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_ray.weights.transport.protocol import BlockStore, Link, LinkMessage, Work

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from twinkle_ray.weights.messages import Route
    from twinkle_ray.weights.planning.buckets import Bucket
    from twinkle_ray.weights.rendezvous.session import Session, SessionStore

__all__ = ["BlockStore", "Link", "LinkMessage", "Work", "block_store_for", "link_for"]


def block_store_for(route: Route, sync: str, buckets: Iterable[Bucket], *, private: bool) -> BlockStore:
    """The block store of a route, for one rank of a sync.

    Args:
        route: The route.
        sync: Id of the sync.
        buckets: Those of the rank that take this route.
        private: Whether tensors of the rank may live in memory that is mapped from other processes.
    """
    if route == "process":
        from twinkle_ray.weights.transport.inprocess import ProcessBlockStore

        return ProcessBlockStore()
    if route == "shared":
        from twinkle_ray.weights.transport.shared import SharedBlockStore

        return SharedBlockStore(buckets, private=private)
    if route == "cuda_ipc":
        from twinkle_ray.weights.transport.cuda_ipc import CudaBlockStore
        from twinkle_ray.weights.transport.shared import SharedBlockStore

        return CudaBlockStore(SharedBlockStore(buckets))
    assert route == "object_store", f"the route {route!r} has no block store"
    from twinkle_ray.weights.transport.object_store import RayBlockStore

    return RayBlockStore(sync)


def link_for(session: Session, session_store: SessionStore, rank: int, device: torch.device) -> Link:
    """Join a session's process group, after all its processes have arrived."""
    store = session_store.group_store()
    if session.kind == "nccl":
        from twinkle_ray.weights.transport.nccl import NcclLink

        return NcclLink(store, rank, session.size, timeout=session.timeout, device=device)
    from twinkle_ray.weights.transport.gloo import GlooLink, address_towards

    host = address_towards(session.at.host, session.at.port)
    return GlooLink(store, rank, session.size, timeout=session.timeout, host=host)
