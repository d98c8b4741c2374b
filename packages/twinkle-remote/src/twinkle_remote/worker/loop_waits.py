"""Waits of the tasks of a worker's event loop: for awaited lazy results, and for places of their component.

What else a coroutine waits for (a timer, a queue, a socket) is not known; such a task counts as one that goes on.
"""

from __future__ import annotations

import gc
from asyncio import Future, Task, isfuture, taskgroups, tasks
from typing import TYPE_CHECKING, Any

from twinkle_remote.protocol.waiting import Wait, WaitedWorker
from twinkle_remote.running import AWAITED, AwaitedCalls, key_text

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    from twinkle_remote.protocol.failure import WorkerInfo
    from twinkle_remote.worker.loop_task import LoopTask

_DEEPEST = 8  # tasks that wait for tasks


def loop_waits(
    info: WorkerInfo, begun: Mapping[Hashable, tuple[LoopTask, Task[None], object]]
) -> dict[str, Wait | None]:
    """The wait of each task of an event loop, by key; call it on the loop's thread.

    Args:
        info: The worker.
        begun: The loop's tasks.
    """
    return {key_text(key): _wait(info, task, running, begun) for key, (task, running, _) in begun.items()}


def _wait(
    info: WorkerInfo,
    task: LoopTask,
    running: Task[None],
    begun: Mapping[Hashable, tuple[LoopTask, Task[None], object]],
) -> Wait | None:
    if task.asks_for_place:
        task.shown = True
        holders = [(key, other) for key, (other, _, _) in begun.items() if other.holds_place_of(task)]
        workers = [WaitedWorker(info.group, info.rank, other.name, key_text(key)) for key, other in holders]
        return Wait(task.number, task.name, tuple((worker,) for worker in workers), can_raise=False)
    found = _awaited(running)
    if not found:
        return None
    for one in found:
        one.shown = True
    ways = [way for one in found for way in one.ways()]
    return Wait(hash(tuple(one.number for one in found)), task.name, tuple(ways))


def _awaited(task: Task[Any], depth: int = 0) -> Sequence[AwaitedCalls] | None:
    """The calls on which alone it depends whether an asyncio task goes on; None if it may go on by itself."""
    chain = list(_coroutines(task.get_coro()))
    if depth > _DEEPEST or task.done() or not chain or any(map(_has_limit, chain)):
        return None
    if task in AWAITED:
        return [AWAITED[task]]
    future = next(filter(isfuture, gc.get_referents(_following(chain[-1]))), None)
    others = [future] if isinstance(future, Task) else _members(chain[-1], future)
    found: list[AwaitedCalls] = []
    for other in others:
        if other.done():
            continue
        behind = _awaited(other, depth + 1) if isinstance(other, Task) else None
        if behind is None:
            return None
        found += behind
    return found


def _members(innermost: Any, future: Future[Any] | None) -> Iterable[Future[Any]]:
    """The members of what `asyncio.gather` or a `TaskGroup` waits for.

    asyncio has no public way to ask for these; without the names nothing is known, and the task counts as one that
    goes on.
    """
    frame = getattr(innermost, "cr_frame", None)
    if frame is not None and frame.f_code.co_filename == taskgroups.__file__:
        return tuple(getattr(frame.f_locals.get("self"), "_tasks", ()))
    return tuple(getattr(future, "_children", ()))


def _has_limit(coroutine: Any) -> bool:
    code = getattr(coroutine, "cr_code", None)
    return code is not None and code.co_name == "wait_for" and code.co_filename == tasks.__file__


def _coroutines(coroutine: Any) -> Iterator[Any]:
    """A coroutine and those that it awaits, one within the other."""
    while coroutine is not None and (_has(coroutine, "cr_frame") or _has(coroutine, "gi_frame")):
        yield coroutine
        coroutine = _following(coroutine)


def _following(coroutine: Any) -> Any:
    inner = getattr(coroutine, "cr_await", None)
    return getattr(coroutine, "gi_yieldfrom", None) if inner is None else inner


def _has(coroutine: Any, name: str) -> bool:
    return getattr(coroutine, name, None) is not None
