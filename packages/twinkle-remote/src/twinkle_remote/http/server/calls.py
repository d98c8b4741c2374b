"""Makes the calls of clients by the same path as any caller's: bound, dispatched, submitted, collected."""

from __future__ import annotations

import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.iterate import OPENING
from twinkle_remote.call.start import start
from twinkle_remote.component.handle import SPECIAL, step_options
from twinkle_remote.component.method import check_arguments, positional_names
from twinkle_remote.component.release import release
from twinkle_remote.errors import NotInitializedError, PlacementError
from twinkle_remote.failures.frames import called_from
from twinkle_remote.http.nodes import NodeReader, own_error_type
from twinkle_remote.http.registered import TYPES, vars_of
from twinkle_remote.http.server.body import RefusedError
from twinkle_remote.http.server.components import Components, ServedComponent, placement
from twinkle_remote.http.server.results import CallOutcome, WorkOutcome
from twinkle_remote.http.wire.decode import value_of
from twinkle_remote.http.wire.errors import WireFormatError
from twinkle_remote.protocol.component import component_of
from twinkle_remote.protocol.marks import NAMES, options_under

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twinkle_remote.http.server.body import Body
    from twinkle_remote.http.server.clients import RemoteClient, Result
    from twinkle_remote.http.server.components import ServedClasses
    from twinkle_remote.http.server.watcher import Watcher
    from twinkle_remote.http.wire.limits import Limits
    from twinkle_remote.protocol.component import Component
    from twinkle_remote.protocol.spec import FunctionSpec
    from twinkle_remote.sessions.runtime import Runtime

AT_ONCE_SECONDS = 0.002
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

    Attributes:
        components: The components of all tenants.
    """

    def __init__(self, runtime: Runtime, classes: ServedClasses, watcher: Watcher, limits: Limits) -> None:
        self.components = Components()
        self.work = ThreadPoolExecutor(_THREADS, "twinkle-http-work")
        self._runtime = runtime
        self._classes = classes
        self._watcher = watcher
        self._limits = limits

    def describer(self, client: RemoteClient) -> Callable[[Any, Callable[[Any], Any]], list[Any] | None]:
        """Describes handles for a client."""
        return self.components.describer(client.tenant)

    def decode(self, client: RemoteClient, body: Body) -> dict[str, Any]:
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
            if node[0] == "handle" and len(node) == 3:
                return self.components.find(client.tenant, node[1], node[2]).value
            raise WireFormatError(f"a node {node[0]!r:.40} is not known")

        reader = NodeReader(own_error_type, other)
        request = value_of(body.tree, body.buffers, TYPES, named=reader.value, limits=self._limits)
        if not isinstance(request, dict):
            raise WireFormatError("a request is a dict")
        return request

    def make(self, client: RemoteClient, name: str, request: Mapping[str, Any]) -> Result:
        """Make a call; returns when it was submitted, and after a moment in which a short call ends.

        Args:
            client: The client.
            name: Name of its result.
            request: Its kind, its component and its arguments.

        Raises:
            RefusedError: The class is not served, or the component is not the client's.
            TwinkleError: As for any call that is not sent.
        """
        if self._watcher.pending() >= MOST_IN_FLIGHT:
            raise RefusedError(429, f"{MOST_IN_FLIGHT} calls are in flight at the server", "TooMany")
        kind = request.get("kind")
        group, instance = (str(request.get(key)) for key in ("group", "instance"))
        with called_from(f"{request.get('line')!s:.{_LONGEST_LINE}}"):
            if kind == "create":
                return self._create(client, name, group, instance, request)
            if kind == "drop":
                return self._release(client, name, group, instance)
            if kind not in ("method", "iterate", "next"):
                raise RefusedError(403, f"{kind!s:.20} is no kind of call here", "NotServed")
            return self._call(client, name, self.components.find(client.tenant, group, instance), kind, request)

    def _call(
        self, client: RemoteClient, name: str, served: ServedComponent, kind: Any, request: Mapping[str, Any]
    ) -> CallOutcome:
        component = component_of(served.value)
        if component is None:
            raise NotInitializedError("this component is gone: the session that built it has ended")
        if kind == "method":
            call = self._method(component, served, str(request.get("target")), *_arguments(request))
        elif not callable(getattr(served.cls, "__iter__", None)):
            raise _not_served(served.cls, "__iter__")
        elif kind == "iterate":
            call = start(component, "iterate", "__iter__", f"{component.name}.__iter__", OPENING)
        else:
            call = start(component, "next", "__next__", f"{component.name}.__next__", step_options(served.cls))
            call.prefetched = True
        outcome = CallOutcome(name, client, kind, call, served.value, self.describer(client))
        client.results[name] = outcome
        call.ends_within(AT_ONCE_SECONDS)
        if not call.done():  # a failed call goes on until its last rank has answered
            self._watcher.add(outcome)
        return outcome

    def _method(
        self, component: Component, served: ServedComponent, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        spec, function = _remote_function(served.cls, target)
        name = f"{component.name}.{target}"
        names: Sequence[str] = [f"args[{i}]" for i in range(len(args))]
        if function is not None:
            check_arguments(component.name, target, inspect.signature(function), served.value, args, kwargs)
            names = positional_names(getattr(function, NAMES), len(args))
        return start(component, "method", target, name, spec, names, args, kwargs)

    def _create(
        self, client: RemoteClient, name: str, group: str, instance: str, request: Mapping[str, Any]
    ) -> WorkOutcome:
        cls: Any = self._classes.find(str(request.get("target")))
        args, kwargs = _arguments(request)
        if self.components.has(client.tenant, group, instance):
            raise PlacementError(f"instance_id={instance!r} is taken on group {group!r}: give another one")
        kwargs = placement(kwargs, group, request.get("mesh"))
        line = str(request.get("line"))

        def build() -> None:
            with called_from(line[:_LONGEST_LINE]):
                made = cls(*args, **kwargs)
            self.components.add(client.tenant, group, instance, ServedComponent(cls, made))
            client.components.add((group, instance))

        outcome = WorkOutcome(name, client, self.work.submit(build), self.describer(client))
        client.results[name] = outcome
        return outcome

    def _release(self, client: RemoteClient, name: str, group: str, instance: str) -> Result:
        self.components.find(client.tenant, group, instance)
        outcome = WorkOutcome(
            name, client, self.work.submit(self.drop, client, group, instance), self.describer(client)
        )
        client.results[name] = outcome
        return outcome

    def drop(self, client: RemoteClient, group: str, instance: str) -> None:
        """Release a component of a client."""
        client.components.discard((group, instance))
        served = self.components.remove(client.tenant, group, instance)
        if served is not None and not self._runtime.closed:
            release(served.value)


def _arguments(request: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, kwargs = request.get("args", []), request.get("kwargs", {})
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise WireFormatError("args are a list, and kwargs a dict")
    return tuple(args), kwargs


def _remote_function(cls: type, name: str) -> tuple[FunctionSpec, Any]:
    """The options of a remote function, and the function; None for a special method without options of its own.

    Raises:
        RefusedError: It is none.
    """
    spec = options_under(cls, name)
    if spec is not None and (not name.startswith("_") or name in SPECIAL):
        found = vars_of(cls, name)
        return spec, found.fget if isinstance(found, property) else found
    if name in SPECIAL and callable(getattr(cls, name, None)):
        return SPECIAL[name], None
    raise _not_served(cls, name)


def _not_served(cls: type, name: str) -> RefusedError:
    return RefusedError(403, f"{name[:80]!a} is no remote function of {cls.__name__}", "NotServed")
