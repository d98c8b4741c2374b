"""Sends a call to its workers: divides the arguments, and submits one task to each called rank."""

from __future__ import annotations

import time
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from twinkle_remote.call.dispatch import dispatch
from twinkle_remote.call.tables.lazy_arguments import LazyArguments, lists_only
from twinkle_remote.call.uninterrupted import uninterrupted
from twinkle_remote.call.whole_rows import warn_whole
from twinkle_remote.errors import WorkerDiedError
from twinkle_remote.failures.lateness import called_alone, lateness
from twinkle_remote.protocol.messages import Share, Task, UncheckedError
from twinkle_remote.protocol.served import SentCall
from twinkle_remote.values.registered_splitters import registered_splitters

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_remote.call.dispatch import Shares
    from twinkle_remote.call.pending.pending_call import PendingCall
    from twinkle_remote.protocol.backend import Reply, Store, WorkerGroup
    from twinkle_remote.protocol.call import Call
    from twinkle_remote.protocol.handed import HandedShare
    from twinkle_remote.sessions.runtime import Runtime
    from twinkle_remote.values.registered_splitters import RegisteredSplitters


class SentTasks(SentCall):
    """A call whose tasks this process has sent, or a part of it.

    Args:
        call: The call.
        group: The called workers' group.
        replies: One for each called rank, ascending.
        each: Every called rank received rows of its own; None if only the outcomes show it.
        submitted: Wall clock before the first was sent, in seconds.
        stored: Bytes that were stored for it.
        sources: The calls that make its arguments and were not done, or have failed.

    Attributes:
        sources: As given.
    """

    of_ranks = True
    lazies = ()

    def __init__(
        self,
        call: Call,
        group: WorkerGroup,
        replies: Sequence[Reply],
        *,
        each: bool | None = False,
        submitted: float = 0.0,
        stored: int = 0,
        sources: Sequence[PendingCall] = (),
    ) -> None:
        self.replies = replies
        self.each = each
        self.submitted = submitted
        self.sent = stored + sum([reply.sent for reply in replies])
        self.sources = sources
        self._call = call
        self._group = group

    def cancel(self, pending: Sequence[Reply]) -> None:
        """Cancel it on event loops."""
        self._group.cancel(pending)

    def withdraw(self, pending: Sequence[Reply]) -> None:
        """Cancel it also where it has not begun."""
        self._group.withdraw(pending)

    def lateness(self, seconds: float | None, done: Sequence[int], pending: Sequence[Reply]) -> Exception:
        """The error that it is not done after this time."""
        call, mesh = self._call, self._call.mesh
        late = [reply.rank for reply in pending]
        head = (
            f"{call.name} on {call.where()} is not done after {seconds:g} s: "
            f"{f'ranks {done} are done' if done else 'no rank is done'}, "
            f"ranks {late} are not: {', '.join([self.label(rank) for rank in late])}"
        )
        size = self._group.size if mesh is None else mesh.world_size
        alone = called_alone(call.spec, [reply.rank for reply in self.replies], size)
        return lateness(head, call.line, done, late, self._group.stacks_of(pending), alone)

    def label(self, rank: int) -> str:
        """The short name of a called worker, with its coordinate."""
        return self._call.label(self._group.info(rank))


def send(runtime: Runtime, call: Call) -> SentTasks:
    """Divide the arguments of a call, and submit one task to each called rank.

    Raises:
        DispatchError: The arguments cannot be divided as the function asks.
        WorkerDiedError: The process that stores the arguments has ended; nothing was sent.
    """
    group, store = runtime.backend.group(call.component.group), runtime.backend.store
    try:
        shares, lazies, tasks, submitted = _prepared(call, group, store)
    except WorkerDiedError as error:
        text = f"{call.name} was not sent to {group.name!r}: {error}\n  called from {call.line}"
        raise WorkerDiedError(text) from error
    ranks = call.ranks
    if shares.undivided is not None:
        warn_whole(call.name, shares.undivided, len(ranks))
    submit = partial(group.submit_all, ranks, tasks, shares.of_rank, lazies.inputs)
    if len(ranks) == 1:
        replies = submit()
    elif runtime.sends_messages:
        replies = uninterrupted(partial(_in_order, runtime, submit))
    else:
        replies = _in_order(runtime, submit)
    return SentTasks(
        call.without_arguments(),
        group,
        replies,
        each=shares.each,
        submitted=submitted,
        stored=shares.encoder.stored_bytes,
        sources=lazies.sources,
    )


def _prepared(call: Call, group: WorkerGroup, store: Store) -> tuple[Shares, LazyArguments, Sequence[Task], float]:
    """The shares of a call, its lazy arguments, its tasks, and when they were ready.

    A group that pickles finds by itself what its caller would look for in lists of many rows; a list in which it finds
    something is then looked through.
    """
    stored: dict[int, tuple[object, tuple[object, int] | None]] = {}

    def put(value: object) -> tuple[object, int] | None:
        if id(value) not in stored:
            stored[id(value)] = value, store.put(value)
        return stored[id(value)][1]

    for unchecked in (True, False) if group.takes_unchecked else (False,):
        shares = dispatch(call, put, unchecked=unchecked)
        submitted = time.time()
        lazies = LazyArguments(call, shares, store.keep)
        try:
            return shares, lazies, group.prepare(_tasks(call, shares, lazies.pieces)), submitted
        except UncheckedError:
            continue
    raise AssertionError("tasks were looked through, and were refused as unchecked")


def _in_order(runtime: Runtime, submit: Callable[[], Sequence[Reply]]) -> Sequence[Reply]:
    """Submit so that every rank gets this process's calls in one order."""
    with runtime.sending:
        return submit()


def _tasks(call: Call, shares: Shares, pieces: Sequence[HandedShare] | None) -> Sequence[Task]:
    """The distinct tasks of a call."""
    kind, spec, instance = call.kind, call.spec, call.component.instance
    on_loop = spec.on_loop and kind in ("method", "item", "close")
    seconds = call.deadline if on_loop else None
    if kind == "method" and shares.arguments == [((), {})]:
        return [
            _bare_task(
                instance,
                call.name,
                call.target,
                registered_splitters(),
                seconds,
                (on_loop, spec.columns_unknown, call.eager),
            )
        ]
    only_lists, splitters = lists_only(spec), registered_splitters()
    added = None
    if spec.adds is not None:
        from twinkle_remote.call.column_rules import columns_added  # few functions add columns

        added = columns_added(call)
    return [
        Task(
            kind,
            instance,
            call.name,
            call.target,
            args,
            kwargs,
            slots=shares.encoder.used,
            share=None if shares.count is None else Share(index, shares.count),
            total=shares.real,
            rows=shares.rows(index),
            uneven=spec.uneven,
            balance=spec.rule if (shares.count or 1) > 1 else False,
            numbers=shares.numbers(index),
            in_order=spec.collect == "flatten",
            lists_only=only_lists,
            handed=shares.encoder.handed_of(index),
            pieces=None if pieces is None else pieces[index],
            place=index,
            splitters=splitters,
            on_loop=on_loop,
            seconds=seconds,
            concurrent=spec.concurrent,
            columns_unknown=spec.columns_unknown,
            masks=spec.masks,
            adds=added,
            mesh=call.mesh if kind == "create" else None,
            eager=call.eager,
            unchecked=shares.encoder.unchecked,
        )
        for index, (args, kwargs) in enumerate(shares.arguments)
    ]


@lru_cache(maxsize=1024)
def _bare_task(
    instance: str,
    name: str,
    method: str,
    known: RegisteredSplitters | None,
    seconds: float | None,
    options: tuple[bool, bool, bool],
) -> Task:
    """The task of a call without arguments; it is cached, so that a backend prepares it once."""
    on_loop, columns_unknown, eager = options
    return Task(
        "method",
        instance,
        name,
        method,
        splitters=known,
        on_loop=on_loop,
        seconds=seconds,
        columns_unknown=columns_unknown,
        eager=eager,
    )
