"""The ends of calls: each is waited for until it is over or late, and reported once.

A report waits in a thread of its own, because a cause, the stacks of a late call, or a value may take a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from concurrent.futures import Future
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

from twinkle_http.gate import log_call
from twinkle_http.messages import CallUpdate
from twinkle_remote.backends.serving import CallResult, check_all_ended, known_rows
from twinkle_remote.backends.support import Lazy
from twinkle_remote.protocol import Itself

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twinkle_http.server.clients import RemoteClient, TenantUse
    from twinkle_http.server.components import Components
    from twinkle_remote.backends.serving import ServedSession
    from twinkle_remote.backends.support import PendingCall

    Ended = Callable[[BaseException | None], None]

T = TypeVar("T")
INLINE_BYTES = 16 * 1024
READ_SECONDS = 600.0
_LATE_SECONDS = 0.01  # behind a deadline, so that the call itself finds that it is late


def in_own_thread(work: Callable[[], object]) -> None:
    """Do some work in a daemon thread of its own: one of a pool would hold the interpreter at its end."""
    threading.Thread(target=work, name="twinkle-http-work", daemon=True).start()


async def result_of(work: Callable[[], T]) -> T:
    """The result of some work that a thread of its own does; waits for it."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            value = work()
        except BaseException as error:  # it is for who waits
            done.set_exception(error)
        else:
            done.set_result(value)

    in_own_thread(run)
    return await asyncio.shield(asyncio.wrap_future(done))


class ServedCall:
    """A call of a client in the session, and its result.

    Args:
        number: Number of its request.
        client: Its client.
        pending: The call in flight.
        itself: Its component, which is the value if the method returns it.
        ended: Called once at its end, with its error.
    """

    def __init__(self, number: int, client: RemoteClient, pending: PendingCall, itself: object, ended: Ended) -> None:
        self.number, self.name, self.client = number, f"r{number}", client
        self.pending, self.ended = pending, ended
        self._itself = itself
        self._source = CallResult(pending, itself)

    @cached_property
    def lazy(self) -> Lazy[Any]:
        """The lazy value of its result in other calls."""
        return Lazy(self.pending, self._itself)

    def value(self) -> Any:
        """The collected value; waits for it, and is freed by its deadline, or the end of the session."""
        value = self._source.value(READ_SECONDS)
        if self.pending.call.kind == "iterate":
            return all(value) if isinstance(value, list) else bool(value)
        return Itself.ITSELF if value is self._itself and value is not None else value


class Ends:
    """Watches the calls of all clients.

    Attributes:
        in_flight: The ids of requests that are not done, also of those in JSON and of work next to the session.
    """

    def __init__(self, session: ServedSession, components: Components) -> None:
        self.in_flight: set[str] = set()
        self._session, self._components = session, components
        self._watched: dict[ServedCall, bool] = {}

    def begun(self, label: str, tenant: str, use: TenantUse, request_id: str) -> Ended:
        """Count a call; what is returned counts and logs its end."""
        began = time.monotonic()
        use.add("calls")
        self.in_flight.add(request_id)

        def ended(error: BaseException | None) -> None:
            use.add("calls", -1)
            self.in_flight.discard(request_id)
            failures = getattr(error, "failures", ())
            kind = "" if error is None else failures[0].type_name if failures else type(error).__name__
            log_call(label, tenant, request_id, time.monotonic() - began, kind)

        return ended

    def watch(self, one: ServedCall) -> None:
        """Have the end of a call reported: all ranks have answered, one has failed, or its deadline is over."""
        self._watched[one] = True
        one.pending.when_over(partial(self._finish, one))
        self._await_deadline(one)

    def of(self, client: RemoteClient) -> Iterator[ServedCall]:
        """The calls of a client that are not done."""
        return (one for one in tuple(self._watched) if one.client is client)

    def _await_deadline(self, one: ServedCall) -> None:
        """Finish a call when it is late, or what makes its arguments is."""
        if one not in self._watched:
            return
        if one.pending.overdue() is not None:
            self._finish(one)
        elif (deadline := one.pending.next_deadline()) is not None:
            seconds = max(0.0, deadline - time.monotonic()) + _LATE_SECONDS
            one.client.call_later(seconds, partial(self._await_deadline, one))

    def _finish(self, one: ServedCall) -> None:
        if self._watched.pop(one, False):  # the deadline may come with the end
            in_own_thread(partial(self._report, one))

    def _report(self, one: ServedCall) -> None:
        """Wait for the end of a call that is over or late, and report it."""
        late, failed = one.pending.overdue(), None
        try:
            one.pending.wait()
            update = self._end_of(one)
        except Exception as error:  # it is the caller's
            update = CallUpdate(one.number, error=self._components.error(one.client.tenant, error))
            update.upstream, failed = late is not None and late is not one.pending, error
        one.ended(failed)
        one.client.publish(update)

    def _end_of(self, one: ServedCall) -> CallUpdate:
        """The update of a call that all ranks have answered well."""
        pending, update = one.pending, CallUpdate(one.number)
        outcomes = [pending.outcome(rank) for rank in pending.ranks]
        if pending.call.kind == "next" and any(outcome.ended for outcome in outcomes):
            check_all_ended(pending)
            update.outcome["ended"] = True
            return update
        begin, produced = min(one.started for one in outcomes), sum(one.produced for one in outcomes)
        update.outcome = {"is_list": all(one.is_list for one in outcomes), "produced": produced, "started": begin}
        update.outcome["seconds"] = max(one.started + one.seconds for one in outcomes) - begin
        with contextlib.suppress(Exception):  # of a value, it is for who reads it
            if any(outcome.rows is not None for outcome in outcomes):
                update.outcome["rows"] = known_rows(one.lazy)
                columns = outcomes[0].columns
                if columns is not None and all(outcome.columns == columns for outcome in outcomes):
                    update.outcome["columns"] = [str(column) for column in columns]
            outlives = self._session.backend.store.outlives_worker
            is_small = produced <= INLINE_BYTES and all(outlives(outcome.payload) for outcome in outcomes)
            if is_small and not callable(pending.spec.collect):
                message = self._components.encoded(one.client.tenant, one.value(), f"the result of {pending.name}")
                update.value = message.to_bytes() if message.nbytes <= INLINE_BYTES else None
        return update
