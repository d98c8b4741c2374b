"""Makes the calls of clients by the same path as all other calls: dispatch, submit, collect."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from twinkle_http.server.calls.call_decoder import KINDS, CallDecoder, arguments_of, line_of, ranks_of
from twinkle_http.server.calls.served_call import ServedCall, ServedWork, error_type
from twinkle_http.server.clients.restarted_ranks import RestartedError
from twinkle_http.server.components import Components, ServedComponent, placement
from twinkle_http.server.requests.body import RefusedError
from twinkle_http.server.tools import InstalledTools
from twinkle_remote import release
from twinkle_remote.backends.serving import called_from, leaving_running, release_all, start
from twinkle_remote.errors import NotInitializedError
from twinkle_remote.protocol import Call, FunctionSpec, component_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_http.server.calls.call_decoder import DecodedCall
    from twinkle_http.server.clients.clients import RemoteClient, Result
    from twinkle_http.server.clients.restarts import ServedRestarts
    from twinkle_http.server.clients.watcher import Watcher
    from twinkle_http.server.components import ServedClasses
    from twinkle_http.server.requests.access_log import AccessLog
    from twinkle_http.wire.envelopes import CallRequest
    from twinkle_http.wire.limits import Limits
    from twinkle_remote.backends.serving import ServedSession
    from twinkle_remote.errors import TwinkleError

MOST_IN_FLIGHT = 4096
_THREADS = 16
_CHECKED = ("method", "item")  # where single ranks are called: their workers must be those that the client knows


class CallExecutor:
    """Makes calls in the session of this process.

    Args:
        session: The session.
        classes: The served classes.
        watcher: Waits for the calls.
        limits: Bounds of a message.
        access_log: Counts and logs calls.
        restarts: Starts workers again.

    Attributes:
        restarts: As given.
        components: The components of all tenants.
        decoder: Reads the requests of clients.
    """

    def __init__(
        self,
        session: ServedSession,
        classes: ServedClasses,
        watcher: Watcher,
        limits: Limits,
        access_log: AccessLog,
        restarts: ServedRestarts,
    ) -> None:
        self.restarts = restarts
        self.components = Components()
        self.decoder = CallDecoder(self.components, limits)
        self.work = ThreadPoolExecutor(_THREADS, "twinkle-http-work")
        self._session = session
        self._classes = classes
        self._watcher = watcher
        self._tools = InstalledTools()
        self._access_log = access_log

    def in_flight(self, tenant: str | None) -> int:
        """Number of calls that are not done: of a tenant, or of all."""
        return self._watcher.pending(tenant)

    def describer(self, client: RemoteClient) -> Callable[[Any, Callable[[Any], Any]], list[Any] | None]:
        """Describes handles for a client."""
        return self.components.describer(client.tenant)

    def make(
        self,
        client: RemoteClient,
        name: str,
        request: CallRequest,
        request_id: str,
        inline: DecodedCall | None = None,
    ) -> Result:
        """Make a call; return when it was submitted. The client gets updates about it later.

        Args:
            client: The client.
            name: Name of its result.
            request: The request.
            request_id: What names it in logs and errors.
            inline: The call that it asks for, if it must not wait until fewer calls are in flight.

        Raises:
            CallTimeoutError: It would have to wait; nothing was sent.
            RefusedError: The class is not served, or the component is not the client's.
            RestartedError: The workers of the called ranks were restarted, and the client does not know it yet.
            TwinkleError: As for any call that is not sent.
        """
        if self._watcher.pending() >= MOST_IN_FLIGHT:
            raise RefusedError(429, f"{MOST_IN_FLIGHT} calls are in flight at the server", "TooMany")
        if inline is not None:
            return self._start(client, name, inline, request, request_id, at_once=True)
        kind = str(request.kind)
        work = {"create": self._create, "drop": self._release, "tool": self._tool, "restart": self._restart}
        with called_from(line_of(request, request_id)), leaving_running():
            if kind in KINDS:
                decoded = self.decoder.call(client, request, request_id)
                return self._start(client, name, decoded, request, request_id)
            if kind not in work:
                raise RefusedError(403, f"{kind:.20} is no kind of call here", "NotServed")
            return work[kind](client, name, request, request_id)

    def _start(
        self,
        client: RemoteClient,
        name: str,
        decoded: DecodedCall,
        request: CallRequest,
        request_id: str,
        *,
        at_once: bool = False,
    ) -> ServedCall:
        """Send a call, and watch it until its last rank has answered."""
        call = decoded.call
        checked = call.reads_ranks and call.kind in _CHECKED
        if checked:
            client.restarted.check(call.component.group, call.ranks, request.read)
        ahead = call.kind == "next" or call.reads_ranks
        pending = start(call, held=call.kind != "next", prefetched=ahead, at_once=at_once)
        if checked:
            try:
                client.restarted.check(call.component.group, call.ranks, request.read)  # it may have waited until then
            except RestartedError:
                pending.cancel()
                raise
        if call.kind == "close":
            client.generators.ended(call.target, call.ranks)
        served = ServedCall(name, client, pending, decoded.itself, self.describer(client), self._session.backend.store)
        served.when_over = self._teller(pending.name, client, request_id)
        client.keep(served)
        self._watcher.add(served)
        return served

    def _teller(self, name: str, client: RemoteClient, request_id: str) -> Callable[[str], None]:
        """Tells the access log that a call has ended; takes the type of its error."""
        began = time.monotonic()
        return lambda error: self._access_log.called(name, client.tenant, request_id, time.monotonic() - began, error)

    def close_generators(self, client: RemoteClient) -> None:
        """Close the generators of a client that is gone."""
        for opened in client.generators.take_all():
            part = replace(opened.component, ranks=tuple(sorted(opened.left)))
            spec = FunctionSpec(dispatch="all", collect="first", form=opened.spec.form)
            start(Call("close", part, opened.key, f"{opened.name}.close", spec, "a client's end"), prefetched=True)

    def _create(self, client: RemoteClient, name: str, request: CallRequest, request_id: str) -> Result:
        cls: Any = self._classes.find(str(request.target))
        client.use.check("components")
        group, instance = str(request.group), str(request.instance)
        args, kwargs = arguments_of(request)
        kwargs = placement(cls, kwargs, group, request.mesh)
        self.components.reserve(client.tenant, group, instance)

        def build() -> dict[str, Any]:
            try:
                with called_from(line_of(request, request_id)):
                    made = cls(*args, **kwargs)
            except BaseException:
                self.components.give_up(client.tenant, group, instance)
                raise
            self.components.add(client.tenant, group, instance, ServedComponent(cls, made))
            client.components.add((group, instance))
            client.use.add("components")
            if client.is_gone:
                self._drop(client, group, instance)
            component = component_of(made)
            if component is None:
                raise NotInitializedError(f"{cls.__name__} was built, but is no component of this session")
            return {"ranks": list(component.ranks), "mesh": component.mesh}

        return self._worked(client, name, build, self._teller(f"{cls.__name__}.__init__", client, request_id))

    def _tool(self, client: RemoteClient, name: str, request: CallRequest, request_id: str) -> Result:
        """Make, call or close a tool next to the session, in a separate thread."""
        work = client.tools.call(self._tools, str(request.target), *arguments_of(request))

        def run() -> Any:
            with called_from(line_of(request, request_id)):
                return work()

        return self._worked(client, name, run, self._teller("tool", client, request_id))

    def _restart(self, client: RemoteClient, name: str, request: CallRequest, request_id: str) -> Result:
        component = self.components.in_group(client.tenant, str(request.group))
        work = partial(self.restarts.restart, component, ranks_of(component, request))
        return self._worked(client, name, work, self._teller("restart", client, request_id))

    def _release(self, client: RemoteClient, name: str, request: CallRequest, request_id: str) -> Result:
        group, instance = str(request.group), str(request.instance)
        cls = self.components.find(client.tenant, group, instance).cls
        tell = self._teller(f"{cls.__name__}.release", client, request_id)
        return self._worked(client, name, lambda: self._drop(client, group, instance), tell)

    def _worked(
        self, client: RemoteClient, name: str, work: Callable[[], Any], tell: Callable[[str], None]
    ) -> ServedWork:
        future = self.work.submit(work)
        future.add_done_callback(lambda done: tell(error_type(done.exception())))
        outcome = ServedWork(name, client, future, self.describer(client))
        client.keep(outcome)
        outcome.when_done(client.publish)
        return outcome

    def _drop(self, client: RemoteClient, group: str, instance: str) -> None:
        """Release a component of a client."""
        client.components.discard((group, instance))
        served = self.components.remove(client.tenant, group, instance)
        if served is not None:
            client.use.add("components", -1)
        if served is not None and not self._session.closed:
            release(served.value)

    def cancel_all(self, client: RemoteClient) -> None:
        """Cancel the calls of a client that is gone; nobody gets their outcomes."""
        for outcome in self._watcher.calls_of(client):
            outcome.call.cancel()

    def drop_all(self, client: RemoteClient) -> Sequence[TwinkleError]:
        """Release all components of a client; returns the errors of those that could not be released."""
        removed = [self.components.remove(client.tenant, *key) for key in tuple(client.components)]
        client.components.clear()
        return () if self._session.closed else release_all([served.value for served in removed if served is not None])
