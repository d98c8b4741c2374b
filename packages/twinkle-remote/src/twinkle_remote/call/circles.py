"""Finds calls that wait for each other: a task that waits long follows what it waits for, from worker to worker."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Protocol

from twinkle_remote.errors import CircularCallError, TwinkleError
from twinkle_remote.failures.frames import driver_line
from twinkle_remote.protocol.failure import WorkerInfo
from twinkle_remote.protocol.waiting import WaitedWorker
from twinkle_remote.worker.running import own_turn, wait_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from types import TracebackType

    from twinkle_remote.protocol.backend import Backend, Reply
    from twinkle_remote.protocol.spec import FunctionSpec
    from twinkle_remote.protocol.waiting import Wait

_FIRST_SECONDS = 0.5  # before the first look: most waits are shorter
_LONGEST_SECONDS = 8.0  # between two looks
_GRACE_SECONDS = 4.0  # for the one of a circle that raises first
_ASKED = 64  # workers of one call that are asked in one look
_MOST = 512  # workers in one look

_Node = tuple[str, int]


class WaitedCall(Protocol):
    """What is asked of a call that is waited for.

    Attributes:
        name: Class.method.
        spec: Its options.
        group_name: Name of the called group.
    """

    name: str
    spec: FunctionSpec
    group_name: str

    def pending(self) -> Sequence[Reply]:
        """Replies that are not known to be done."""

    def waited_for(self) -> Sequence[WaitedCall]:
        """The calls whose workers must answer before it is done: itself, and those that make its arguments."""


class CircleWatch:
    """Watches one wait of a task that has its worker's turn; elsewhere it does nothing.

    Args:
        calls: The calls of which the first to end is waited for.
        backend: Its backend.
        limited: The waiting ends by itself.
    """

    def __init__(self, calls: Sequence[WaitedCall], backend: Backend, *, limited: bool) -> None:
        turn = None if limited else own_turn()
        self._turn, self._calls, self._backend = turn, calls, backend
        self._pause = _FIRST_SECONDS
        self._look_at = None if turn is None else time.monotonic() + self._pause
        self._suspected: tuple[Mapping[_Node, int], float] | None = None

    def __enter__(self) -> CircleWatch:
        if self._turn is not None:
            self._turn.worker.set_wait(wait_of(self._turn.name, self._ways()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._turn is not None:
            self._turn.worker.set_wait(None)

    @property
    def due(self) -> float | None:
        """When to call `look` next, in monotonic seconds; None for never."""
        return self._look_at

    def look(self) -> None:
        """Look for a circle, if it is time.

        Raises:
            CircularCallError: There is one, twice the same.
        """
        if self._turn is None or self._look_at is None or time.monotonic() < self._look_at:
            return
        info = self._turn.worker.info
        mine = (info.group, info.rank)
        own = self._turn.worker.waits_for
        assert own is not None
        own = own._replace(ways=self._ways())
        self._turn.worker.set_wait(own)
        circle = _circle(self._backend, mine, own)
        self._pause = min(2 * self._pause, _LONGEST_SECONDS) if circle is None else _FIRST_SECONDS
        self._look_at = time.monotonic() + self._pause
        if circle is None:
            self._suspected = None
            return
        numbers = {node: wait.number for node, wait in circle.items()}
        if self._suspected is None or self._suspected[0] != numbers:
            self._suspected = numbers, time.monotonic()
            return
        first = min(node for node, wait in circle.items() if wait.can_raise)
        if first == mine or time.monotonic() > self._suspected[1] + _GRACE_SECONDS:
            raise CircularCallError(_told(self._backend, circle))

    def _ways(self) -> tuple[tuple[WaitedWorker, ...], ...]:
        return tuple(tuple(_workers(call)) for call in self._calls)


def _workers(call: WaitedCall) -> Iterator[WaitedWorker]:
    """The workers whose turn a call needs, or the calls that make its arguments."""
    for one in call.waited_for():
        if not (one.spec.on_loop or one.spec.beside):
            for reply in one.pending():
                yield WaitedWorker(one.group_name, reply.rank, one.name)


def _circle(backend: Backend, mine: _Node, own: Wait) -> Mapping[_Node, Wait] | None:
    """The waits from a worker back to itself, in order, of which none can go on; None without any."""
    waits = _waits_behind(backend, mine, own)
    stuck = set(waits)
    while free := {node for node in stuck if _goes_on(waits[node], stuck)}:
        stuck -= free
    if mine not in stuck:
        return None
    came_from: dict[_Node, _Node] = {}
    left = [mine]
    for node in left:
        for worker in _all(waits[node]):
            target = worker[:2]
            if target == mine:
                return _path(node, mine, waits, came_from)
            if target in stuck and target not in came_from:
                came_from[target] = node
                left.append(target)
    return None


def _goes_on(wait: Wait, stuck: Collection[_Node]) -> bool:
    return any(all(worker[:2] not in stuck for worker in way) for way in wait.ways)


def _all(wait: Wait) -> Sequence[WaitedWorker]:
    return [worker for way in wait.ways for worker in way]


def _waits_behind(backend: Backend, mine: _Node, own: Wait) -> Mapping[_Node, Wait]:
    """The known waits of the workers that are waited for, at any number of steps."""
    waits, asked = {mine: own}, {mine}
    left = [mine]
    while left and len(asked) < _MOST:
        fresh: dict[str, list[int]] = {}
        for node in left:
            for worker in _some(_all(waits[node])):
                if worker[:2] not in asked:
                    asked.add(worker[:2])
                    fresh.setdefault(worker.group, []).append(worker.rank)
        left = []
        for group, ranks in fresh.items():
            found = _waits(backend, group, ranks)
            waits.update({(group, rank): wait for rank, wait in found.items()})
            left += [(group, rank) for rank in found]
    return waits


def _some(workers: Sequence[WaitedWorker]) -> Sequence[WaitedWorker]:
    return workers if len(workers) <= _ASKED else random.Random(time.monotonic()).sample(workers, _ASKED)


def _waits(backend: Backend, group: str, ranks: Sequence[int]) -> Mapping[int, Wait]:
    try:
        return backend.group(group).waits(ranks)
    except TwinkleError:  # the session ends
        return {}


def _path(
    last: _Node, mine: _Node, waits: Mapping[_Node, Wait], came_from: Mapping[_Node, _Node]
) -> Mapping[_Node, Wait]:
    nodes = [last]
    while nodes[-1] != mine:
        nodes.append(came_from[nodes[-1]])
    return {node: waits[node] for node in reversed(nodes)}


def _told(backend: Backend, circle: Mapping[_Node, Wait]) -> str:
    nodes = list(circle)
    rows = ["calls wait for each other in a circle:"]
    for node, following in zip(nodes, [*nodes[1:], nodes[0]], strict=True):
        wait = circle[node]
        call = next(worker.call for worker in _all(wait) if worker[:2] == following)
        rows.append(f"  {wait.running} on {_label(backend, node)} waits for {call} on {_label(backend, following)}")
    rows.append(f"  this wait is at {driver_line()}")
    rows.append(
        "a worker runs one `def` method at a time: return the lazy result without waiting for it, make the method that "
        "is called back `async def`, or have the caller pass on what it needs"
    )
    return "\n".join(rows)


def _label(backend: Backend, node: _Node) -> str:
    group, rank = node
    try:
        return backend.group(group).info(rank).label()
    except TwinkleError:
        return WorkerInfo(group, rank, rank + 1).label()
