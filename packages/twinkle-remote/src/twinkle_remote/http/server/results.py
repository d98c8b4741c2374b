"""The calls of clients at the server: their state, as it is told to the client, and their values."""

from __future__ import annotations

import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.call_result import CallResult
from twinkle_remote.call.iterate import check_all_ended
from twinkle_remote.call.lazy import lazy_over, lazy_part
from twinkle_remote.call.part import part_of
from twinkle_remote.http import nodes
from twinkle_remote.http.nodes import NodeWriter, as_unicode
from twinkle_remote.http.registered import TYPES
from twinkle_remote.http.server.rank_answers import INLINE_BYTES, rank_answer
from twinkle_remote.http.wire.encode import encode
from twinkle_remote.http.wire.envelopes import CallNews, RanksAnswer
from twinkle_remote.protocol.messages import Itself
from twinkle_remote.streams.chunk_result import known_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from twinkle_remote.call.lazy import Lazy
    from twinkle_remote.call.pending_call import PendingCall
    from twinkle_remote.http.server.clients import RemoteClient
    from twinkle_remote.http.wire.encode import NodeOf
    from twinkle_remote.http.wire.envelopes import RankNews
    from twinkle_remote.http.wire.frame import WireMessage
    from twinkle_remote.protocol.messages import Kind, Outcome

READ_SECONDS = 600.0
_SCALARS = frozenset({type(None), bool, float})
_PLAIN = _SCALARS | {int, str}


def error_bytes(error: BaseException, other: NodeOf) -> bytes:
    """An encoded exception."""
    return nodes.error_bytes(error, TYPES, other)


class CallOutcome:
    """A call of the session.

    Args:
        name: Name of its result.
        client: Its client.
        kind: Kind of the call.
        call: The call in flight.
        itself: The component, if the method returns it.
        other: Describes handles.
        by_rank: The client reads the ranks' answers one by one, and nothing else.
        ended: Called with the ranks that are at the end of their generator.

    Attributes:
        when_over: Called once when all ranks have answered, with the type of the error.
    """

    def __init__(
        self,
        name: str,
        client: RemoteClient,
        kind: Kind,
        call: PendingCall,
        itself: object,
        other: NodeOf,
        *,
        by_rank: bool = False,
        ended: Callable[[Sequence[int]], None] | None = None,
    ) -> None:
        self.name = name
        self.client = client
        self.call = call
        self._kind = kind
        self._itself = itself
        self._source = CallResult(call, itself)
        self._other = other
        self.nbytes = 0
        self._is_counted = False
        self._told = (False, False)
        self._counted: set[int] = set()
        self._only_ranks = by_rank
        self._ranks_told: set[int] | None = set() if by_rank else None
        self.when_over: Callable[[str], None] | None = None
        self._ended = ended
        self._lock = threading.Lock()

    @cached_property
    def lazy(self) -> Lazy[Any]:
        """What stands for its result in other calls."""
        return lazy_over(self._source)

    def news(self, *, lost: bool = False) -> CallNews | None:
        """What the client does not know yet.

        Args:
            lost: The session has ended: a call that is not done fails.
        """
        with self._lock:
            done, failed = self.call.done(), self.call.failed()
            if lost and not done:
                done = failed = True
            ranks = self._fresh_ranks()
            if self._told == (done, failed) and not ranks:
                return None
            self._told = done, failed
        if done and not self._is_counted:
            self._is_counted = True
            self.client.made(self, sum(self.call.outcome(rank).produced for rank in self._answered_ranks()))
        news = CallNews(self.name, done=done, each=self.call.each if self._only_ranks else None)
        if ranks:
            news.ranks = self._rank_answers(ranks)
        if self._only_ranks and not lost:
            return news
        error = self._error() if failed else None
        if done and error is None:
            error = self._finish(news)
        if error is not None:
            news.error = error_bytes(error, self._other)
            news.first = first_of(error)
            news.upstream = any(failure.upstream for failure in getattr(error, "failures", ()))
        news.answers = [_figures(self.call.outcome(rank)) for rank in self._answered()]
        return news

    def is_plain(self) -> bool:
        """Whether all ranks have answered, each with a number or text: its news are made in no time."""
        call = self.call
        if self.reads_ranks or callable(call.spec.collect) or callable(call.spec.weight):
            return False
        read = call.origin[0].backend.outcome
        for reply in call.replies():
            if not reply.done():
                return False
            outcome = read(reply)
            if outcome.failure is not None or type(outcome.payload) not in _PLAIN or outcome.produced > INLINE_BYTES:
                return False
        return True

    def tell_over(self) -> None:
        """Tell once that all ranks have answered."""
        with self._lock:
            tell, self.when_over = self.when_over, None
        if tell is not None:
            tell(self.call.first_failure().type_name if self.call.failed() else "")

    def by_rank(self) -> RanksAnswer:
        """The answers of ranks so far; the news tell of the others from now on."""
        with self._lock:
            self._ranks_told = set()
            self.call.done()
            ranks = self._fresh_ranks()
        return RanksAnswer(self.call.each, self._rank_answers(ranks))

    def piece(self, rank: int) -> Lazy[Any]:
        """What one rank made."""
        return lazy_part(self.lazy, part_of(self.call, [rank], 0))

    def _fresh_ranks(self) -> Sequence[int]:
        """The ranks whose answers are here and were not told, if the client reads them."""
        if self._ranks_told is None:
            return ()
        known = self._ranks_told | {reply.rank for reply in self.call.pending()}
        fresh = [rank for rank in self.call.ranks if rank not in known]
        self._ranks_told.update(fresh)
        return fresh

    def _rank_answers(self, ranks: Sequence[int]) -> list[RankNews]:
        store, call = self.call.origin[0].backend.store, self.call
        if self._ended is not None:
            self._ended([rank for rank in ranks if call.outcome(rank).ended])
        item = self._kind == "item"
        at_hand = {rank: store.outlives_worker(call.outcome(rank).payload) for rank in ranks}
        return [
            rank_answer(
                call,
                rank,
                self._other,
                outlives=not item and at_hand[rank],
                inline=item and at_hand[rank],  # nothing is waited for: this thread serves all clients
            )
            for rank in ranks
        ]

    @property
    def reads_ranks(self) -> bool:
        """Whether the client reads the ranks' answers one by one."""
        return self._ranks_told is not None

    def _answered_ranks(self) -> Sequence[int]:
        waiting = self.call.pending()
        if not waiting:
            return self.call.ranks
        pending = {reply.rank for reply in waiting}
        return [rank for rank in self.call.ranks if rank not in pending]

    def _answered(self) -> Sequence[int]:
        """The ranks that have answered since it was asked for last."""
        fresh = [rank for rank in self._answered_ranks() if rank not in self._counted]
        self._counted.update(fresh)
        return fresh

    def _error(self) -> Exception | None:
        try:
            self.call.wait(0.0)
        except Exception as error:  # it is sent to the client
            return error
        return None

    def _finish(self, news: CallNews) -> Exception | None:
        """The end of an iterator, and a small value."""
        news.ended = self._kind == "next" and any(self.call.ended())
        if any(self.call.outcome(rank).rows is not None for rank in self.call.ranks):
            news.rows = known_rows(self.lazy)
        try:
            if news.ended:
                check_all_ended(self.call)
            elif self._is_small():
                self._put_value(news)
        except Exception as error:
            if news.ended:
                return error
        return None

    def _put_value(self, news: CallNews) -> None:
        value = self._value()
        if type(value) in _SCALARS or (type(value) is int and -(1 << 63) <= value < 1 << 63):
            news.scalar = [value]
            return
        message = self._encoded(value)
        if message.nbytes <= INLINE_BYTES:
            news.value = message.to_bytes()

    def _is_small(self) -> bool:
        """Whether the value is small, and read without a wait: the watcher's thread serves all clients."""
        outcomes = [self.call.outcome(rank) for rank in self.call.ranks]
        if callable(self.call.spec.collect) or sum([outcome.produced for outcome in outcomes]) > INLINE_BYTES:
            return False
        store = self.call.origin[0].backend.store
        return all(store.outlives_worker(outcome.payload) for outcome in outcomes)

    def message(self) -> WireMessage:
        """The value, collected and encoded."""
        return self._encoded(self._value())

    def _value(self) -> Any:
        value = self._source.value(READ_SECONDS)
        if self._kind == "iterate":
            return all(value) if isinstance(value, list) else bool(value)
        return Itself.ITSELF if value is self._itself and value is not None else value

    def _encoded(self, value: Any) -> WireMessage:
        return encode(value, TYPES, what=f"the result of {self.call.name}", named=NodeWriter(TYPES, self._other).node)


class WorkOutcome:
    """Work of the server itself, such as building a component, in another thread.

    Args:
        name: Name of its result.
        client: Its client.
        work: What it does.
        other: Describes handles.
    """

    def __init__(self, name: str, client: RemoteClient, work: Future[Any], other: NodeOf) -> None:
        self.name = name
        self.client = client
        self._work = work
        self._other = other
        self.nbytes = 0
        self._told = False

    def news(self) -> CallNews | None:
        """What the client does not know yet."""
        if self._told or not self._work.done():
            return None
        self._told = True
        error = self._work.exception()
        if error is None:
            return CallNews(self.name, done=True, value=self.message().to_bytes())
        return CallNews(self.name, done=True, error=error_bytes(error, self._other), first=first_of(error))

    def when_done(self, publish: Callable[[CallNews], None]) -> None:
        """Publish the news when there are some; in another thread."""

        def tell(work: Future[Any]) -> None:
            news = self.news()
            if news is not None:
                publish(news)

        self._work.add_done_callback(tell)

    def message(self) -> WireMessage:
        """What it returned, encoded."""
        return encode(self._work.result(), TYPES, what="the answer", named=NodeWriter(TYPES, self._other).node)


def _figures(outcome: Outcome) -> list[Any]:
    why = "" if outcome.failure is None else outcome.failure.type_name
    return [
        outcome.rank,
        outcome.fetched,
        outcome.produced,
        outcome.started,
        outcome.seconds,
        outcome.fetch_seconds,
        why,
    ]


def error_type(error: BaseException | None) -> str:
    """The type of an error, or of what a worker raised; empty for None."""
    return "" if error is None else first_of(error)[2]


def first_of(error: BaseException) -> list[str]:
    """Label, node, type and text of the first failure, for short messages."""
    failures = getattr(error, "failures", ())
    if failures:
        first = failures[0]
        return list(map(as_unicode, (first.label, first.node, first.type_name, first.message, first.method)))
    return ["", "", type(error).__name__, as_unicode(str(error).partition("\n")[0]), ""]
