"""Lost nodes, as workers and input waiters learn of them: the driver reports to each node's agent, and they ask it."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import ray

if TYPE_CHECKING:
    from collections.abc import Mapping

_INTERVAL = 1.0  # seconds between two questions


class LostNodePoller:
    """Asks the agent of this node, at most once a second, and without waiting for its answer.

    Args:
        agent: The agent.
    """

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._lock = threading.Lock()
        self._asked: ray.ObjectRef[Any] | None = None
        self._since = 0.0
        self._lost: Mapping[str, str] = {}

    def any_lost(self) -> bool:
        """Whether the head or a node is known to be lost."""
        with self._lock:
            if self._asked is not None and ray.wait([self._asked], timeout=0)[0]:
                asked, self._asked = self._asked, None
                with suppress(ray.exceptions.RayError):  # the agent has ended, and so has this node
                    self._lost = ray.get(asked)
            if self._asked is None and time.monotonic() - self._since >= _INTERVAL:
                self._asked, self._since = self._agent.lost_nodes.remote(), time.monotonic()
        return bool(self._lost)

    def lost(self, name: str) -> str | None:
        """The reason why the head or a node is lost; None if it is not known to be lost."""
        return self._lost.get(name)


class LostNodeWaiter:
    """The same for a process whose waits are coroutines: one question a second for all of them.

    Args:
        agent: The agent.
    """

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._asking: asyncio.Future[Mapping[str, str]] | None = None

    async def next(self) -> Mapping[str, str]:
        """The lost nodes and the reasons, a second from now."""
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._ask())
        return await asyncio.shield(self._asking)

    async def _ask(self) -> Mapping[str, str]:
        await asyncio.sleep(_INTERVAL)
        self._asking = None
        try:
            lost: Mapping[str, str] = await self._agent.lost_nodes.remote()
        except ray.exceptions.RayError:
            return {}
        return lost
