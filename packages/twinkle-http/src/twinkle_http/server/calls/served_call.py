"""The calls of clients at the server: their state, as the client gets it, and their values."""

from __future__ import annotations

import threading
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from twinkle_http import tags
from twinkle_http.tags import TagWriter, as_unicode, failure_texts
from twinkle_http.wire.encode import encode
from twinkle_http.wire.envelopes import FIGURES, CallUpdate, RankUpdate
from twinkle_remote.backends.serving import CallResult, check_all_ended, known_rows, rank_result
from twinkle_remote.backends.support import Lazy
from twinkle_remote.protocol import Failure, Itself, Outcome
from twinkle_remote.values import TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from twinkle_http.server.clients.clients import RemoteClient
    from twinkle_http.wire.encode import TagOf
    from twinkle_http.wire.frame import WireMessage
    from twinkle_remote.backends.support import PendingCall
    from twinkle_remote.protocol import Backend, Store, WorkerGroup

INLINE_BYTES = 16 * 1024
READ_SECONDS = 600.0
QUICK_SECONDS = 0.002  # of a method
_SCALARS = frozenset({type(None), bool, float})
_PLAIN = _SCALARS | {int, str}
_read_figures = attrgetter(*FIGURES)
_RESTARTED = "it has ended, and another worker has its rank, which has not what this call is for"


def error_bytes(error: BaseException, other: TagOf) -> bytes:
    """An encoded exception."""
    return tags.error_bytes(error, TYPES, other)


class ServedCall:
    """A call of the session.

    Args:
        name: Name of its result.
        client: Its client.
        call: The call in flight.
        itself: The component, if the method returns it.
        other: Describes handles.
        store: The session's store.

    Attributes:
        reads_ranks: The client reads the ranks' answers one by one, and nothing else.
        when_over: Called once when all ranks have answered, with the type of the error.
    """

    def __init__(
        self,
        name: str,
        client: RemoteClient,
        call: PendingCall,
        itself: object,
        other: TagOf,
        store: Store,
    ) -> None:
        self.name = name
        self.client = client
        self.call = call
        self._store = store
        self._itself = itself
        self._source = CallResult(call, itself)
        self._other = other
        self.nbytes = 0
        self._is_counted = False
        self._told = (False, False)
        self._ranks_reported: set[int] = set()
        self.reads_ranks = call.call.reads_ranks
        self.when_over: Callable[[str], None] | None = None
        self._lock = threading.Lock()

    @cached_property
    def lazy(self) -> Lazy[Any]:
        """The lazy value of its result in other calls."""
        return Lazy(self.call, self._itself)

    def update(self, *, lost: bool = False) -> CallUpdate | None:
        """The news that the client does not know yet.

        Args:
            lost: The session has ended: a call that is not done fails.
        """
        with self._lock:
            done, failed = self.call.done(), self.call.failed()
            if lost and not done:
                done = failed = True
            ranks, is_new = self._fresh_ranks(), self._told != (done, failed)
            if not is_new and not ranks:
                return None
            self._told = done, failed
        outcomes = [self.call.outcome(rank) for rank in self._ranks_reported] if done else ()
        if done and not self._is_counted:
            self._is_counted = True
            self.client.made(self, sum([one.produced for one in outcomes]))
            self.client.last_was_quick = max([one.seconds for one in outcomes], default=1.0) < QUICK_SECONDS
        update = CallUpdate(self.name, done=done, each=self.call.each, ranks=self._rank_answers(ranks))
        if not is_new or (self.reads_ranks and not lost):
            return update
        error = self._error() if failed else None
        if done and error is None:
            error = self._finish(update, outcomes)
        if error is not None:
            update.error = error_bytes(error, self._other)
            update.first = first_of(error)
            update.upstream = any(failure.upstream for failure in getattr(error, "failures", ()))
        return update

    def is_plain(self, backend: Backend) -> bool:
        """Whether all ranks have answered, each with a number or text: its update is made in no time.

        Args:
            backend: The session's; it reads replies.
        """
        call = self.call
        if self.reads_ranks or callable(call.spec.collect) or callable(call.spec.weight):
            return False
        for reply in call.replies():
            if not reply.done():
                return False
            outcome = backend.outcome(reply)
            if outcome.failure is not None or type(outcome.payload) not in _PLAIN or outcome.produced > INLINE_BYTES:
                return False
        return True

    def report_over(self) -> None:
        """Report once that all ranks have answered."""
        with self._lock:
            tell, self.when_over = self.when_over, None
        if tell is not None:
            tell(self.call.first_failure().type_name if self.call.failed() else "")

    def piece(self, rank: int) -> Lazy[Any]:
        """The value that one rank made."""
        return rank_result(self.lazy, rank)

    def _fresh_ranks(self) -> Sequence[int]:
        """The ranks whose answers are here and were not reported."""
        known = self._ranks_reported.union([reply.rank for reply in self.call.pending()])
        fresh = [rank for rank in self.call.ranks if rank not in known]
        self._ranks_reported.update(fresh)
        return fresh

    def _rank_answers(self, ranks: Sequence[int]) -> list[RankUpdate]:
        call = self.call
        if call.call.kind == "item":
            self.client.generators.ended(call.call.target, [rank for rank in ranks if call.outcome(rank).ended])
        return [_rank_answer(call, rank, self._other, self._store) for rank in ranks]

    def _error(self) -> Exception | None:
        try:
            self.call.wait(0.0)
        except Exception as error:  # it is sent to the client
            return error
        return None

    def _finish(self, update: CallUpdate, outcomes: Sequence[Outcome]) -> Exception | None:
        """The end of an iterator, and a small value.

        Args:
            update: Takes them.
            outcomes: Those of all ranks.
        """
        update.ended = self.call.call.kind == "next" and bool([one for one in outcomes if one.ended])
        if [one for one in outcomes if one.rows is not None]:
            update.rows = known_rows(self.lazy)
        try:
            if update.ended:
                check_all_ended(self.call)
            elif self._is_small(outcomes):
                self._put_value(update)
        except Exception as error:
            if update.ended:
                return error
        return None

    def _put_value(self, update: CallUpdate) -> None:
        value = self._value()
        if type(value) in _SCALARS or (type(value) is int and -(1 << 63) <= value < 1 << 63):
            update.scalar = [value]
            return
        message = self._encoded(value)
        if message.nbytes <= INLINE_BYTES:
            update.value = message.to_bytes()

    def _is_small(self, outcomes: Sequence[Outcome]) -> bool:
        """Whether the value is small, and read without a wait: the watcher's thread serves all clients."""
        if callable(self.call.spec.collect) or sum([one.produced for one in outcomes]) > INLINE_BYTES:
            return False
        return not [one for one in outcomes if not self._store.outlives_worker(one.payload)]

    def message(self) -> WireMessage:
        """The value, collected and encoded."""
        return self._encoded(self._value())

    def _value(self) -> Any:
        value = self._source.value(READ_SECONDS)
        if self.call.call.kind == "iterate":
            return all(value) if isinstance(value, list) else bool(value)
        return Itself.ITSELF if value is self._itself and value is not None else value

    def _encoded(self, value: Any) -> WireMessage:
        return encode(value, TYPES, what=f"the result of {self.call.name}", named=TagWriter(TYPES, self._other).node)


def _rank_answer(call: PendingCall, rank: int, other: TagOf, store: Store) -> RankUpdate:
    """The message to a client on the answer of one rank.

    Args:
        call: The call.
        rank: A rank that has answered.
        other: Describes handles.
        store: The session's store.
    """
    outcome = call.outcome(rank)
    answer = RankUpdate(list(_read_figures(outcome)))
    if outcome.failure is not None:
        answer.failure = failure_texts(outcome.failure)
        error = outcome.failure.exception()
        if error is not None:
            answer.error = error_bytes(error, other)
        return answer
    if not store.outlives_worker(outcome.payload):
        return answer  # nothing is waited for: this thread serves all clients
    if call.call.kind != "item":
        answer.outlives = True
    elif not outcome.ended and outcome.produced <= INLINE_BYTES:
        answer.value = _inline_value(call, outcome, other)
    return answer


def restarted_answers(group: WorkerGroup, ranks: Sequence[int], restarted: Sequence[int]) -> list[RankUpdate]:
    """The message to a client about a call for workers that have ended and were restarted.

    Args:
        group: The group.
        ranks: The called ranks; none was called.
        restarted: The ranks whose workers were restarted.
    """
    answers = []
    for rank in ranks:
        died = rank in restarted
        why = _RESTARTED if died else "it was not called, because another rank of the call has ended"
        failure = Failure(group.info(rank).label(), "", "WorkerDiedError", why, died=died, upstream=not died)
        answers.append(RankUpdate(list(_read_figures(Outcome(rank))), failure=failure_texts(failure)))
    return answers


def _inline_value(call: PendingCall, outcome: Outcome, other: TagOf) -> bytes | None:
    try:
        value = call.fetch(outcome)
        if value is Itself.ITSELF:
            return None
        message = encode(value, TYPES, what=f"the result of {call.name}", named=TagWriter(TYPES, other).node)
    except Exception:  # who reads the value is told
        return None
    return message.to_bytes() if message.nbytes <= INLINE_BYTES else None


class ServedWork:
    """Work of the server itself, such as building a component, in another thread.

    Args:
        name: Name of its result.
        client: Its client.
        work: What it does.
        other: Describes handles.
    """

    def __init__(self, name: str, client: RemoteClient, work: Future[Any], other: TagOf) -> None:
        self.name = name
        self.client = client
        self._work = work
        self._other = other
        self.nbytes = 0
        self._told = False

    def update(self) -> CallUpdate | None:
        """The news that the client does not know yet."""
        if self._told or not self._work.done():
            return None
        self._told = True
        error = self._work.exception()
        if error is None:
            return CallUpdate(self.name, done=True, value=self.message().to_bytes())
        return CallUpdate(self.name, done=True, error=error_bytes(error, self._other), first=first_of(error))

    def when_done(self, publish: Callable[[CallUpdate], None]) -> None:
        """Publish the update when there is one; in another thread."""

        def tell(work: Future[Any]) -> None:
            update = self.update()
            if update is not None:
                publish(update)

        self._work.add_done_callback(tell)

    def message(self) -> WireMessage:
        """The value that it returned, encoded."""
        return encode(self._work.result(), TYPES, what="the answer", named=TagWriter(TYPES, self._other).node)


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
