"""The restart of a group of the running session."""

from __future__ import annotations

from twinkle_ray.backend import RayBackend
from twinkle_remote.backends.support import running
from twinkle_remote.errors import TwinkleError


def restart(group: str) -> None:
    """Rebuild a group of the running Ray session, whose workers died or do not answer.

    New workers take the place of the old ones. Its components are constructed again with the same arguments, and
    `restore()` is called on those that have it. Handles stay valid. No call is repeated.

    The workers are seeded as the first ones were, so draws from `random`, numpy and torch begin anew. A component that
    must not repeat its draws seeds a generator of its own in `restore()`.

    Args:
        group: Name of the group; `initialize` must have been given `restart="group"`.

    Raises:
        TwinkleError: `restart="group"` was not given, or the backend is not Ray.
        PlacementError: The cluster has no room for the group any more, or lacks a node that the group shares by
            `colocate` with others.
        RemoteCallError: A constructor or a `restore` raised.
    """
    backend = running().backend
    if not isinstance(backend, RayBackend):
        raise TwinkleError(f"restart({group!r}) needs the Ray backend on the driver, this is {type(backend).__name__}")
    backend.restart(group)
