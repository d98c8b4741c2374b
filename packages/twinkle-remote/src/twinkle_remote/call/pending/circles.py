"""Finds calls that wait for each other: a task that waits long follows what it waits for, from worker to worker."""

from __future__ import annotations

import random
import re
import time
from typing import TYPE_CHECKING, Protocol

from twinkle_remote.errors import CircularCallError, TwinkleError
from twinkle_remote.failures.frames import driver_line
from twinkle_remote.protocol.failure import WorkerInfo
from twinkle_remote.protocol.waiting import WaitedWorker, WorkerWaits
from twinkle_remote.running import own_turn, wait_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from types import TracebackType

    from twinkle_remote.protocol.backend import Backend, Reply
    from twinkle_remote.protocol.spec import FunctionSpec
    from twinkle_remote.protocol.waiting import Wait
    from twinkle_remote.running import TaskTurn

FIRST_SECONDS = 0.5  # before the first look: most waits are shorter
_LONGEST_SECONDS = 8.0  # between two looks
_GRACE_SECONDS = 4.0  # for the one of a circle that raises first
_ASKED = 64  # workers of one call that are asked in one look
_MOST = 512  # workers in one look

_LINE = re.compile(r'File "([^"]+)", line (\d+)')
_SHOWN = 12  # rows of a long circle
_ADVICE = (
    "a worker runs one `def` method at a time, and as many `async def` methods as remote_class(concurrency=...) says: "
    "return the lazy result without waiting for it, await it in an `async def` method, or have the caller pass on what "
    "it needs"
)

_Node = tuple[str, int, str]


class WaitedCall(Protocol):
    """A call that is waited for, as the search for circles needs it.

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

    def withdraw(self) -> None:
        """Cancel it for its caller, also where a worker has not begun it."""


class CircleWatch:
    """Watches one wait of a task that holds up its worker's turn or event loop, or awaits; elsewhere it does nothing.

    Args:
        calls: The calls of which the first to end is waited for.
        backend: Its backend.
        limited: The waiting ends by itself.
        awaiting: The task of an event loop that awaits; None for one that holds up what runs it.
    """

    def __init__(
        self, calls: Sequence[WaitedCall], backend: Backend, *, limited: bool, awaiting: TaskTurn | None = None
    ) -> None:
        turn = None if limited else awaiting or own_turn()
        self._turn, self._calls, self._backend = turn, calls, backend
        self._awaits = awaiting is not None
        self._pause = FIRST_SECONDS
        self._look_at = None if turn is None else time.monotonic() + self._pause
        self._suspected: tuple[Mapping[_Node, int], float] | None = None

    def __enter__(self) -> CircleWatch:
        if self._turn is not None:
            self._set(wait_of(self._turn.name, self.ways()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._turn is not None:
            self._set(None)

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
        mine = (info.group, info.rank, self._turn.key)
        circle = self._found(self._turn, mine)
        self._pause = min(2 * self._pause, _LONGEST_SECONDS) if circle is None else FIRST_SECONDS
        self._look_at = time.monotonic() + self._pause
        if circle is None:
            self._suspected = None
            return
        numbers = {node: wait.number for node, wait in circle.items()}
        if self._suspected is None or self._suspected[0] != numbers:
            self._suspected = numbers, time.monotonic()
            return
        if _raises_first(circle) == mine or time.monotonic() > self._suspected[1] + _GRACE_SECONDS:
            error = CircularCallError(_message(self._backend, circle, self._line(self._turn)))
            self._give_up_unbegun(circle)
            raise error

    def _found(self, turn: TaskTurn, mine: _Node) -> Mapping[_Node, Wait] | None:
        """The circle in which the task is."""
        worker = turn.worker
        own = None if self._awaits else worker.waits.of(turn.key)
        if own is not None:
            self._set(own._replace(ways=self.ways()))
        worker.refresh_waits()
        own = worker.waits.of(turn.key)
        return None if own is None else _circle(self._backend, mine, own)

    def _line(self, turn: TaskTurn) -> str:
        """File and line of the wait."""
        if not self._awaits:
            return driver_line()
        *_, innermost = _LINE.findall(turn.worker.loop.stack(turn.key) or "") or [("a coroutine", "?")]
        return ":".join(innermost)

    def _give_up_unbegun(self, circle: Mapping[_Node, Wait]) -> None:
        """Withdraw the call that waits for a place which this task would never free: it would run for nobody."""
        if any(not wait.can_raise and node[2] for node, wait in circle.items()):
            for call in self._calls:
                call.withdraw()

    def _set(self, wait: Wait | None) -> None:
        if self._turn is not None and not self._awaits:
            self._turn.worker.set_wait(wait, holds_loop=bool(self._turn.key))

    def ways(self) -> tuple[tuple[WaitedWorker, ...], ...]:
        """The workers of each call that have not answered."""
        return tuple(tuple(_workers(call, self._backend)) for call in self._calls)


def _raises_first(circle: Mapping[_Node, Wait]) -> _Node:
    """The one of a circle that raises: who waits for a task that has no place yet, which then ends; or the first."""
    nodes = list(circle)
    for node, following in zip(nodes, [*nodes[1:], nodes[0]], strict=True):
        if following[2] and not circle[following].can_raise and circle[node].can_raise:
            return node
    return min(node for node, wait in circle.items() if wait.can_raise)


def _workers(call: WaitedCall, backend: Backend) -> Iterator[WaitedWorker]:
    """The workers that have not answered a call, or the calls that make its arguments."""
    for one in call.waited_for():
        if one.spec.concurrent:
            continue
        replies = one.pending()
        keys = backend.group(one.group_name).loop_keys(replies) if one.spec.on_loop else [""] * len(replies)
        for reply, key in zip(replies, keys, strict=True):
            if key is not None:
                yield WaitedWorker(one.group_name, reply.rank, one.name, key)


def _circle(backend: Backend, mine: _Node, own: Wait) -> Mapping[_Node, Wait] | None:
    """The waits from a worker back to itself, in order, of which none can go on; None without any."""
    waits = _waits_behind(backend, mine, own)
    stuck = set(waits)
    while free := {node for node in stuck if _can_end(waits[node], stuck)}:
        stuck -= free
    if mine not in stuck:
        return None
    came_from: dict[_Node, _Node] = {}
    left = [mine]
    for node in left:
        for worker in _all(waits[node]):
            target = _node(worker)
            if target == mine:
                return _path(node, mine, waits, came_from)
            if target in stuck and target not in came_from:
                came_from[target] = node
                left.append(target)
    return None


def _can_end(wait: Wait, stuck: Collection[_Node]) -> bool:
    return not wait.ways or any(all(_node(worker) not in stuck for worker in way) for way in wait.ways)


def _node(worker: WaitedWorker) -> _Node:
    return worker.group, worker.rank, worker.key


def _all(wait: Wait) -> Sequence[WaitedWorker]:
    return [worker for way in wait.ways for worker in way]


def _waits_behind(backend: Backend, mine: _Node, own: Wait) -> Mapping[_Node, Wait]:
    """The known waits of the tasks that are waited for, at any number of steps."""
    waits, known = {mine: own}, dict[tuple[str, int], WorkerWaits]()
    left, seen = [mine], {mine}
    while left and len(known) < _MOST:
        found = [worker for node in left for worker in _some(_all(waits[node]))]
        _ask(backend, found, known)
        left = []
        for worker in found:
            node = _node(worker)
            wait = None if node in seen else known[node[:2]].of(node[2])
            seen.add(node)
            if wait is not None:
                waits[node] = wait
                left.append(node)
    return waits


def _ask(backend: Backend, found: Sequence[WaitedWorker], known: dict[tuple[str, int], WorkerWaits]) -> None:
    """Ask for the waits of workers that are not known yet."""
    fresh: dict[str, list[int]] = {}
    for group, rank in {worker[:2] for worker in found} - known.keys():
        fresh.setdefault(group, []).append(rank)
    for group, ranks in fresh.items():
        waits = _waits(backend, group, ranks)
        known.update({(group, rank): waits.get(rank, WorkerWaits()) for rank in ranks})


def _some(workers: Sequence[WaitedWorker]) -> Sequence[WaitedWorker]:
    return workers if len(workers) <= _ASKED else random.Random(time.monotonic()).sample(workers, _ASKED)


def _waits(backend: Backend, group: str, ranks: Sequence[int]) -> Mapping[int, WorkerWaits]:
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


def _message(backend: Backend, circle: Mapping[_Node, Wait], at: str) -> str:
    nodes = list(circle)
    rows = []
    for node, following in zip(nodes, [*nodes[1:], nodes[0]], strict=True):
        wait = circle[node]
        call = next(worker.call for worker in _all(wait) if _node(worker) == following)
        what = f"waits for {call} on" if wait.can_raise or not node[2] else f"has no place, for {call} holds one on"
        rows.append(f"  {wait.running} on {_label(backend, node)} {what} {_label(backend, following)}")
    if len(rows) > _SHOWN:
        rows[_SHOWN // 2 : -_SHOWN // 2] = [f"  ... and {len(rows) - _SHOWN} more"]
    head, line = "calls wait for each other in a circle:", f"  this wait is at {at}"
    return "\n".join([head, *rows, line, _ADVICE])


def _label(backend: Backend, node: _Node) -> str:
    group, rank, _ = node
    try:
        return backend.group(group).info(rank).label()
    except TwinkleError:
        return WorkerInfo(group, rank, rank + 1).label()
