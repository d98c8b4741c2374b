"""The ends of calls: a call is watched until all ranks have answered, or it fails, and is reported once.

The watching thread serves all clients: it neither waits nor runs a user's code. Failures are waited for in threads of
their own, because a cause, or the stacks of a late call, may take a moment.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from twinkle_http.messages import CallUpdate, Figures
from twinkle_http.server.turn import Turn, in_own_thread
from twinkle_remote.backends.serving import CallResult, check_all_ended, known_rows
from twinkle_remote.backends.support import Lazy
from twinkle_remote.protocol import Itself

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twinkle_http.server.clients import RemoteClient
    from twinkle_http.server.components import Components
    from twinkle_remote.backends.serving import ServedSession
    from twinkle_remote.backends.support import PendingCall

INLINE_BYTES = 16 * 1024
READ_SECONDS = 600.0
_LATE_SECONDS = 0.01  # behind a deadline, so that the call itself finds that it is late


class ServedCall:
    """A call of a client in the session.

    Args:
        number: Number of its request.
        client: Its client.
        pending: The call in flight.
        itself: The component, if the method returns it.
        ended: Called once at its end, with its error.
    """

    def __init__(
        self,
        number: int,
        client: RemoteClient,
        pending: PendingCall,
        itself: object,
        ended: Callable[[BaseException | None], None],
    ) -> None:
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

    Args:
        session: The session.
        components: Encodes values and errors.

    Attributes:
        in_flight: The calls that are not done.
    """

    def __init__(self, session: ServedSession, components: Components) -> None:
        self.in_flight: dict[ServedCall, None] = {}
        self._session, self._components = session, components
        self._turn = Turn("twinkle-http-ends")

    def watch(self, one: ServedCall) -> None:
        """Have the end of a call reported: all ranks have answered, one has failed, or its deadline is over."""
        one.client.keep(one)
        self.in_flight[one] = None
        look = partial(self._turn.put, partial(self._look, one))
        one.pending.when_answered(look)
        if one.pending.spec.timeout is not None:
            one.client.call_later(one.pending.spec.timeout + _LATE_SECONDS, look)

    def look_at_all(self) -> None:
        """Look whether the session has ended."""
        for one in list(self.in_flight):
            self._turn.put(partial(self._look, one))

    def of(self, client: RemoteClient) -> Iterator[ServedCall]:
        """The calls of a client that are not done."""
        return (one for one in list(self.in_flight) if one.client is client)

    def end(self) -> None:
        """End the thread."""
        self._turn.end()

    def _look(self, one: ServedCall) -> None:
        if one not in self.in_flight:
            return
        pending = one.pending
        done, late = pending.done(), pending.overdue() is not None
        if pending.failed() or late or (self._session.closed and not done):
            self._wait_apart(one)
            for other in self.of(one.client) if late else ():  # one that waits for it is late, too
                if other.pending.overdue() is not None:
                    self._wait_apart(other)
        elif done:
            self._report(one, self._end_of(one))

    def _wait_apart(self, one: ServedCall) -> None:
        if one in self.in_flight:
            del self.in_flight[one]
            in_own_thread(partial(self._wait, one), "twinkle-http-failure")

    def _wait(self, one: ServedCall) -> None:
        """Wait for the end of a call."""
        late = one.pending.overdue()
        try:
            one.pending.wait()
            self._report(one, self._end_of(one))
        except Exception as error:  # it is the caller's
            update = CallUpdate(one.name, error=self._components.error(one.client.tenant, error))
            update.upstream = late is not None and late is not one.pending
            self._report(one, update, error)

    def _report(self, one: ServedCall, update: CallUpdate, error: BaseException | None = None) -> None:
        self.in_flight.pop(one, None)
        one.ended(error)
        one.client.publish(one.number, update)

    def _end_of(self, one: ServedCall) -> CallUpdate:
        """The update of a call that all ranks have answered well."""
        pending, tenant = one.pending, one.client.tenant
        outcomes = [pending.outcome(rank) for rank in pending.ranks]
        begin = min(outcome.started for outcome in outcomes)
        figures = Figures(
            is_list=all(outcome.is_list for outcome in outcomes),
            produced=sum(outcome.produced for outcome in outcomes),
            started=begin,
            seconds=max(outcome.started + outcome.seconds for outcome in outcomes) - begin,
        )
        update = CallUpdate(one.name, figures=figures)
        update.ended = pending.call.kind == "next" and any(outcome.ended for outcome in outcomes)
        try:
            if update.ended:
                check_all_ended(pending)
                return update
            if any(outcome.rows is not None for outcome in outcomes):
                figures.rows = known_rows(one.lazy)
                columns = outcomes[0].columns
                if columns is not None and all(outcome.columns == columns for outcome in outcomes):
                    figures.columns = [str(column) for column in columns]
            outlives = self._session.backend.store.outlives_worker
            is_small = figures.produced <= INLINE_BYTES and all(outlives(outcome.payload) for outcome in outcomes)
            if is_small and not callable(pending.spec.collect):
                message = self._components.encoded(tenant, one.value(), f"the result of {pending.name}")
                update.value = message.to_bytes() if message.nbytes <= INLINE_BYTES else None
        except Exception as error:  # of a value, it is for who reads it
            if update.ended:
                update.error = self._components.error(tenant, error)
        return update
