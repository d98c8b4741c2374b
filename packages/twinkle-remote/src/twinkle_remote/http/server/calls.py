"""Makes the calls of clients by the same path as any caller's: bound, dispatched, submitted, collected."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.iterate import OPENING
from twinkle_remote.call.start import start
from twinkle_remote.component.handle import step_options
from twinkle_remote.component.method import check_arguments, positional_names
from twinkle_remote.component.release import release, release_all
from twinkle_remote.context import leaving_running
from twinkle_remote.errors import NotInitializedError
from twinkle_remote.failures.frames import called_from
from twinkle_remote.http.nodes import NodeReader, own_error_type
from twinkle_remote.http.registered import TYPES
from twinkle_remote.http.server.body import RefusedError
from twinkle_remote.http.server.components import Components, ServedComponent, placement
from twinkle_remote.http.server.named_rows import piece_named, rows_named
from twinkle_remote.http.server.renewals import RenewedError
from twinkle_remote.http.server.request_fields import arguments_of, pair_of, ranks_of, timeout_of
from twinkle_remote.http.server.results import CallOutcome, WorkOutcome, error_type
from twinkle_remote.http.server.served_function import not_served, served_function, signature_of
from twinkle_remote.http.server.tools import InstalledTools
from twinkle_remote.http.wire.decode import values_of
from twinkle_remote.http.wire.envelopes import read_request
from twinkle_remote.http.wire.errors import WireFormatError
from twinkle_remote.protocol.component import component_of
from twinkle_remote.protocol.marks import NAMES
from twinkle_remote.protocol.spec import FunctionSpec, by_rank_options
from twinkle_remote.worker.present import present

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from msgspec import Raw

    from twinkle_remote.call.pending_call import PendingCall
    from twinkle_remote.errors import TwinkleError
    from twinkle_remote.http.server.body import Body
    from twinkle_remote.http.server.clients import RemoteClient, Result
    from twinkle_remote.http.server.components import ServedClasses
    from twinkle_remote.http.server.journal import Journal
    from twinkle_remote.http.server.revival import Revival
    from twinkle_remote.http.server.watcher import Watcher
    from twinkle_remote.http.wire.envelopes import CallRequest
    from twinkle_remote.http.wire.limits import Limits
    from twinkle_remote.protocol.component import Component
    from twinkle_remote.sessions.runtime import Runtime

MOST_IN_FLIGHT = 4096
_LONGEST_LINE = 300
_THREADS = 16


class CallMaker:
    """Makes calls in the session of this process.

    Args:
        runtime: The session.
        classes: The served classes.
        watcher: Waits for the calls.
        limits: Bounds of a message.
        journal: Counts and logs calls.

    Attributes:
        revival: Starts workers again.
        components: The components of all tenants.
    """

    def __init__(
        self,
        runtime: Runtime,
        classes: ServedClasses,
        watcher: Watcher,
        limits: Limits,
        journal: Journal,
        revival: Revival,
    ) -> None:
        self.revival = revival
        self.components = Components()
        self.work = ThreadPoolExecutor(_THREADS, "twinkle-http-work")
        self._runtime = runtime
        self._classes = classes
        self._watcher = watcher
        self._tools = InstalledTools()
        self._limits = limits
        self._journal = journal

    def in_flight(self, tenant: str | None) -> int:
        """Number of calls that are not done: of a tenant, or of all."""
        return self._watcher.pending(tenant)

    def describer(self, client: RemoteClient) -> Callable[[Any, Callable[[Any], Any]], list[Any] | None]:
        """Describes handles for a client."""
        return self.components.describer(client.tenant)

    def decode(self, client: RemoteClient, body: Body[Raw]) -> CallRequest:
        """The request of a client: its marks, handles and results are those of this process.

        Raises:
            RefusedError: It names what the client does not hold.
            WireFormatError: It is no request.
        """

        def other(node: list[Any]) -> Any:
            if node[0] == "lazy" and len(node) == 2:
                result = client.result(str(node[1]))
                if isinstance(result, CallOutcome):
                    return result.lazy
            if node[0] == "piece" and len(node) == 3:
                return piece_named(client, node[1], node[2])
            if node[0] == "rows" and len(node) == 2:
                return rows_named(client, node[1])
            if node[0] == "handle" and len(node) == 3:
                return self.components.find(client.tenant, node[1], node[2]).value
            raise WireFormatError(f"a node {node[0]!r:.40} is not known")

        request = read_request(body.tree.root)
        if not (body.tree.nodes or body.buffers or request.args or request.kwargs or request.mesh):
            return request
        roots = (request.args, request.kwargs, request.mesh)
        reader = NodeReader(own_error_type, other)
        nodes = body.tree.nodes
        found = values_of(roots, nodes, body.buffers, TYPES, named=reader.value, limits=self._limits)
        request.args, request.kwargs, request.mesh = found
        return request

    def make(
        self, client: RemoteClient, name: str, request: CallRequest, request_id: str, *, at_once: bool = False
    ) -> Result:
        """Make a call; returns when it was submitted, and the client is told what becomes of it.

        Args:
            client: The client.
            name: Name of its result.
            request: Its kind, its component and its arguments.
            request_id: What names it in logs and errors.
            at_once: It is a method's, and must not wait until fewer calls are in flight.

        Raises:
            CallTimeoutError: It would have to wait; nothing was sent.
            RefusedError: The class is not served, or the component is not the client's.
            RenewedError: Other workers have the called ranks than the client knows.
            TwinkleError: As for any call that is not sent.
        """
        if self._watcher.pending() >= MOST_IN_FLIGHT:
            raise RefusedError(429, f"{MOST_IN_FLIGHT} calls are in flight at the server", "TooMany")
        kind, group, instance = request.kind, str(request.group), str(request.instance)
        line = f"{request.line!s:.{_LONGEST_LINE}}, request {request_id}"
        with called_from(line), leaving_running():
            if kind == "create":
                return self._create(client, name, group, instance, request, line, request_id)
            if kind == "drop":
                return self._release(client, name, group, instance, request_id)
            if kind == "tool":
                return self._tool(client, name, request, line, request_id)
            if kind == "revive":
                return self._revive(client, name, group, request, request_id)
            if kind in ("item", "close"):
                return self._watched(client, self._step(client, name, kind, request), request_id)
            if kind not in ("method", "iterate", "next", "generate", "present"):
                raise RefusedError(403, f"{kind!s:.20} is no kind of call here", "NotServed")
            served = self.components.find(client.tenant, group, instance)
            return self._watched(client, self._call(client, name, served, kind, request, at_once=at_once), request_id)

    def _call(
        self,
        client: RemoteClient,
        name: str,
        served: ServedComponent,
        kind: Any,
        request: CallRequest,
        *,
        at_once: bool,
    ) -> CallOutcome:
        component = component_of(served.value)
        if component is None:
            raise NotInitializedError("this component is gone: the session that built it has ended")
        by_rank = bool(request.by_rank)
        if kind == "method":
            begin = partial(self._method, served, str(request.target), *arguments_of(request), by_rank=by_rank)
            call = self._of_known(client, component, request, begin) if by_rank else begin(component, at_once=at_once)
        elif kind == "generate":
            call = self._generate(client, component, served, request)
        elif kind == "present":
            part = replace(component, ranks=ranks_of(component, request))
            call = start(part, "function", present, component.name, FunctionSpec(dispatch="all"), held=True)
        elif not callable(getattr(served.cls, "__iter__", None)):
            raise not_served(served.cls, "__iter__")
        elif kind == "iterate":
            call = start(component, "iterate", "__iter__", f"{component.name}.__iter__", OPENING, held=True)
        else:
            call = start(component, "next", "__next__", f"{component.name}.__next__", step_options(served.cls))
            call.prefetched = True
        return CallOutcome(name, client, kind, call, served.value, self.describer(client), by_rank=by_rank)

    def _of_known(
        self,
        client: RemoteClient,
        component: Component,
        request: CallRequest,
        begin: Callable[[Component], PendingCall],
    ) -> PendingCall:
        """Begin a call of single ranks, whose workers are those that the client knows.

        Raises:
            RenewedError: They are not.
        """
        part = replace(component, ranks=ranks_of(component, request))
        client.renewals.check(part.group, part.ranks, request.read)
        call = begin(part)
        try:
            client.renewals.check(part.group, part.ranks, request.read)  # it may have waited until others were there
        except RenewedError:
            call.prefetched = True
            call.cancel()
            raise
        return call

    def _watched(self, client: RemoteClient, outcome: CallOutcome, request_id: str) -> CallOutcome:
        """Keep a call, and watch it until its last rank has answered."""
        outcome.when_over = self._teller(outcome.call.name, client, request_id)
        client.keep(outcome)
        outcome.call.prefetched |= outcome.reads_ranks
        self._watcher.add(outcome)
        return outcome

    def _teller(self, name: str, client: RemoteClient, request_id: str) -> Callable[[str], None]:
        """Tells the journal that a call has ended; takes the type of its error."""
        began = time.monotonic()
        return lambda error: self._journal.called(name, client.tenant, request_id, time.monotonic() - began, error)

    def _method(
        self,
        served: ServedComponent,
        target: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        component: Component,
        *,
        by_rank: bool,
        at_once: bool = False,
    ) -> PendingCall:
        spec, names = self._bound(component, served, target, args, kwargs)
        if by_rank:
            spec = by_rank_options(spec)
        name = f"{component.name}.{target}"
        return start(component, "method", target, name, spec, names, args, kwargs, held=True, at_once=at_once)

    def _bound(
        self, component: Component, served: ServedComponent, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[FunctionSpec, Sequence[str]]:
        """The options of a remote function, and the names of the positional arguments, which fit it."""
        spec, function = served_function(served.cls, target)
        names: Sequence[str] = [f"args[{i}]" for i in range(len(args))]
        if function is not None:
            signature, simple = signature_of(function)
            if kwargs or len(args) not in simple:  # binding takes as long as the rest of a small call
                check_arguments(component.name, target, signature, served.value, args, kwargs)
            names = positional_names(getattr(function, NAMES), len(args))
        return spec, names

    def _generate(
        self, client: RemoteClient, component: Component, served: ServedComponent, request: CallRequest
    ) -> PendingCall:
        method, key = pair_of(request.target)
        args, kwargs = arguments_of(request)
        spec, names = self._bound(component, served, method, args, kwargs)
        if not spec.yields:
            raise RefusedError(403, f"{method[:80]!a} is no generator function of {served.cls.__name__}", "NotServed")
        name = f"{component.name}.{method}"
        ranks = component.ranks[:1] if spec.execute == "first" else component.ranks
        opened = client.generators.add(key, component, name, spec, ranks)
        return start(component, "generate", (method, opened.key), name, spec, names, args, kwargs, held=True)

    def _step(self, client: RemoteClient, name: str, kind: Any, request: CallRequest) -> CallOutcome:
        """Advance or close a generator."""
        key = str(request.target)
        opened = client.generators.find(key)
        spec = FunctionSpec(dispatch="all", collect="first", form=opened.spec.form, timeout=timeout_of(request))

        def begin(part: Component) -> PendingCall:
            return start(part, kind, opened.key, opened.name, spec, held=True)

        if kind == "item":
            call = self._of_known(client, opened.component, request, begin)
            call.prefetched = True
        else:
            ranks = ranks_of(opened.component, request)
            call = begin(replace(opened.component, ranks=ranks))
            client.generators.ended(key, ranks)
        return CallOutcome(
            name,
            client,
            kind,
            call,
            None,
            self.describer(client),
            by_rank=kind == "item",
            ended=lambda over: client.generators.ended(key, over),
        )

    def close_generators(self, client: RemoteClient) -> None:
        """Close the generators of a client that is gone."""
        for opened in client.generators.take_all():
            part = replace(opened.component, ranks=tuple(sorted(opened.left)))
            spec = FunctionSpec(dispatch="all", collect="first", form=opened.spec.form)
            start(part, "close", opened.key, f"{opened.name}.close", spec).prefetched = True

    def _create(
        self,
        client: RemoteClient,
        name: str,
        group: str,
        instance: str,
        request: CallRequest,
        line: str,
        request_id: str,
    ) -> WorkOutcome:
        cls: Any = self._classes.find(str(request.target))
        client.use.check("components")
        args, kwargs = arguments_of(request)
        kwargs = placement(cls, kwargs, group, request.mesh)
        self.components.reserve(client.tenant, group, instance)

        def build() -> dict[str, Any]:
            try:
                with called_from(line):
                    made = cls(*args, **kwargs)
            except BaseException:
                self.components.give_up(client.tenant, group, instance)
                raise
            self.components.add(client.tenant, group, instance, ServedComponent(cls, made))
            client.components.add((group, instance))
            client.use.add("components")
            if client.is_gone:
                self.drop(client, group, instance)
            component = component_of(made)
            if component is None:
                raise NotInitializedError(f"{cls.__name__} was built, but is no component of this session")
            return {"ranks": list(component.ranks), "mesh": component.mesh}

        tell = self._teller(f"{cls.__name__}.__init__", client, request_id)
        return self._worked(client, name, build, tell)

    def _tool(self, client: RemoteClient, name: str, request: CallRequest, line: str, request_id: str) -> WorkOutcome:
        """Make, call or close a tool beside the session; in a thread of its own."""
        args, kwargs = arguments_of(request)
        work = client.tools.call(self._tools, str(request.target), args, kwargs)

        def run() -> Any:
            with called_from(line):
                return work()

        return self._worked(client, name, run, self._teller("tool", client, request_id))

    def _revive(self, client: RemoteClient, name: str, group: str, request: CallRequest, request_id: str) -> Result:
        component = self.components.in_group(client.tenant, group)
        work = partial(self.revival.revive, component, ranks_of(component, request))
        return self._worked(client, name, work, self._teller("revive", client, request_id))

    def _release(self, client: RemoteClient, name: str, group: str, instance: str, request_id: str) -> Result:
        cls = self.components.find(client.tenant, group, instance).cls
        tell = self._teller(f"{cls.__name__}.release", client, request_id)
        return self._worked(client, name, lambda: self.drop(client, group, instance), tell)

    def _worked(
        self, client: RemoteClient, name: str, work: Callable[[], Any], tell: Callable[[str], None]
    ) -> WorkOutcome:
        future = self.work.submit(work)
        future.add_done_callback(lambda done: tell(error_type(done.exception())))
        outcome = WorkOutcome(name, client, future, self.describer(client))
        client.keep(outcome)
        outcome.when_done(client.publish)
        return outcome

    def drop(self, client: RemoteClient, group: str, instance: str) -> None:
        """Release a component of a client."""
        client.components.discard((group, instance))
        served = self.components.remove(client.tenant, group, instance)
        if served is not None:
            client.use.add("components", -1)
        if served is not None and not self._runtime.closed:
            release(served.value)

    def cancel_all(self, client: RemoteClient) -> None:
        """Cancel the calls of a client that is gone: nobody is told what becomes of them."""
        for outcome in self._watcher.calls_of(client):
            outcome.call.cancel()

    def drop_all(self, client: RemoteClient) -> Sequence[TwinkleError]:
        """Release all components of a client; returns the errors of those that could not be released."""
        removed = [self.components.remove(client.tenant, *key) for key in tuple(client.components)]
        client.components.clear()
        return () if self._runtime.closed else release_all([served.value for served in removed if served is not None])
