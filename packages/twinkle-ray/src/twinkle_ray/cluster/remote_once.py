"""Ray's form of our own classes and functions, made once in each process."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import ray

if TYPE_CHECKING:
    from collections.abc import Callable


@cache
def remote_once(target: Callable[..., Any], concurrency_groups: tuple[tuple[str, int], ...] = ()) -> Any:
    """`ray.remote` of a class or function of a module, always the same object.

    Ray keeps each that `ray.remote` returns until the session ends: at the driver, at the head, and in every process
    that gets a handle.

    Args:
        target: The class or function; one of its module, not of a call.
        concurrency_groups: Ray's concurrency groups of an actor and their threads.
    """
    remote: Any = ray.remote  # its types lack `concurrency_groups`
    options = {"concurrency_groups": dict(concurrency_groups)} if concurrency_groups else {}
    return remote(**options)(target) if options else remote(target)
