"""Processes that are forked from one with a connection to Ray: the connection and the cluster stay with the parent."""

from __future__ import annotations

import atexit
import os
import sys
from typing import TYPE_CHECKING

import ray

from twinkle_ray.python_internals import collected_objects, keep_for_good, skip_destructors
from twinkle_remote.errors import TwinkleError

if TYPE_CHECKING:
    from collections.abc import Iterator

_parent = 0


def leave_to_parent() -> None:
    """Make a forked process harmless: without this it hangs, crashes, or takes the parent's cluster with it.

    Ray's exit function ends the cluster. Destructors of Ray's library crash, because its threads are not in the fork.
    """
    global _parent
    _parent = os.getppid()
    _keep_objects_of_ray()
    atexit.unregister(ray.shutdown)
    if sys.platform == "linux":
        skip_destructors()


def _keep_objects_of_ray() -> None:
    """Keep every object of Ray in this process for good.

    To free one waits for locks that threads of the parent held at the fork, and writes into connections that the parent
    uses at the same time, at which the raylet ends itself. Objects of the program's own are among them.
    """
    found = list(_objects())
    kinds = {id(kind): kind for kind in map(type, found)}  # by id: a class need not be hashable
    rays = {key for key, kind in kinds.items() if _is_of_ray(kind)}
    kept = [value for value in found if id(type(value)) in rays]
    keep_for_good(kept)


def _objects() -> Iterator[object]:
    """The objects that the collector knows, and those that Ray's modules hold."""
    yield from collected_objects()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "ray":
            yield from list(vars(module).values())


def _is_of_ray(kind: type) -> bool:
    # not every class has a string there
    return any(str(base.__module__).partition(".")[0] == "ray" for base in kind.__mro__)


def check_not_forked() -> None:
    """Check that this process may connect to Ray.

    Raises:
        TwinkleError: It was forked from a process with a connection to Ray.
    """
    if _parent:
        raise TwinkleError(
            f"process {os.getpid()} was forked from process {_parent}, whose connection to Ray works there alone: "
            'start this process by multiprocessing.get_context("spawn") to have a session of its own'
        )
