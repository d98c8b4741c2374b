"""The place of the running code: the driver, or a worker of a group."""

from __future__ import annotations

import sys
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinkle_mesh import use_rank

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from twinkle_mesh import DeviceMesh


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The place of the running code.

    Attributes:
        group: Name of the worker's group; None on the driver.
        rank: Rank in [0, world_size - 1]; None on the driver.
        world_size: Number of workers of the group; 1 on the driver.
        mesh: Mesh of the component whose method is running; None without one.
    """

    group: str | None = None
    rank: int | None = None
    world_size: int = 1
    mesh: DeviceMesh | None = None

    @property
    def coordinate(self) -> Mapping[str, int]:
        """Coordinate of this rank on the component's mesh, by dim name; empty without a mesh or on the driver."""
        if self.mesh is None or self.rank is None or self.rank not in self.mesh:
            return {}
        return self.mesh.coordinate(self.rank)


_DRIVER = WorkerContext()
_current: ContextVar[WorkerContext] = ContextVar("twinkle_worker", default=_DRIVER)


def current_worker() -> WorkerContext:
    """The place of the caller; on the driver the rank is None."""
    return _current.get()


def in_event_loop() -> bool:
    """Whether an event loop runs in the calling thread."""
    if "asyncio" not in sys.modules:
        return False
    from asyncio import get_running_loop  # half of this package's import time

    try:
        get_running_loop()
    except RuntimeError:
        return False
    return True


_leaves: ContextVar[bool] = ContextVar("twinkle_leaves_running", default=False)


def leaves_running() -> bool:
    """Whether the caller goes on while an async method runs in its process: an event loop does, or a server."""
    return _leaves.get() or in_event_loop()


class leaving_running:  # noqa: N801 - as `working_as`
    """A block whose async calls in this process run beside it."""

    __slots__ = ("_token",)

    def __enter__(self) -> None:
        self._token = _leaves.set(True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _leaves.reset(self._token)


class working_as:  # noqa: N801 - a context manager that reads as a verb; contextlib doubles its time, once for each call
    """Run a block as the given worker, once; every backend does this around a user's method."""

    __slots__ = ("_context", "_rank", "_token")

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._rank = use_rank(context.rank)

    def __enter__(self) -> None:
        self._token = _current.set(self._context)
        self._rank.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rank.__exit__(kind, error, trace)
        _current.reset(self._token)
