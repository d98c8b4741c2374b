"""Answers plain JSON: builds, calls and releases components by the same path as Twinkle's own client."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from twinkle_http.plain.failures import answer_of, described, refusal_of
from twinkle_http.plain.json_client import MOST_COMPONENTS, MOST_LISTED, JsonAnswer, JsonClient, JsonComponent
from twinkle_http.plain.values import JsonValueError, to_json
from twinkle_http.server.calls.served_call import ServedCall
from twinkle_http.server.clients.client_api import stops
from twinkle_http.server.requests.body import RefusedError, unknown
from twinkle_http.wire.envelopes import CallRequest
from twinkle_mesh import DeviceMesh
from twinkle_remote import get
from twinkle_remote.backends.serving import GROUP, MESH, called_from, check_all_ended
from twinkle_remote.errors import TwinkleError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from twinkle_http.plain.catalogue import Catalogue, ServedMethod
    from twinkle_http.server.clients.client_api import ClientApi
    from twinkle_http.server.clients.clients import RemoteClient, Result

LEASES = 10  # plain JSON has no heartbeat, so its components live this many leases without a request
MOST_ITEMS = 100_000  # of a generator
_DEEPEST = 100


class JsonApi:
    """Answers plain JSON.

    Args:
        api: The server's calls.
        catalogue: The served classes and their functions.
        groups: Names of the session's groups.
    """

    def __init__(self, api: ClientApi, catalogue: Catalogue, groups: tuple[str, ...]) -> None:
        self.catalogue = catalogue
        self.most_bytes = api.limits.tree
        self._api = api
        self._groups = groups
        self._default = {0: "local", 1: "".join(groups)}.get(len(groups))
        self._clients: dict[str, JsonClient] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def client(self, tenant: str) -> JsonClient:
        """The components, calls and answers that a tenant holds."""
        found = self._clients.get(tenant)
        if found is None:
            client = self._api.clients.open(tenant)
            client.busy += 1  # its lease does not end: each component has one of its own
            found = self._clients[tenant] = JsonClient(client)
            for work in (found.listen(), self._reap(found)):
                task = asyncio.ensure_future(work)
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        return found

    async def create(self, client: JsonClient, name: str, body: bytes, request_id: str) -> JsonAnswer:
        """Build a component.

        Args:
            client: The tenant's.
            name: Name of the class.
            body: Its keywords, and those of placement.
            request_id: What names the request in logs and errors.
        """
        served = self.catalogue.find(name)

        async def work() -> bytes:
            given = _keywords(body)
            group = given.pop(GROUP, self._default)
            if not isinstance(group, str):
                groups = ", ".join(map(repr, self._groups)) or "of any name"
                raise RefusedError(400, f"{GROUP} is the name of a group; there are {groups}", "InvalidArguments")
            mesh = _mesh(given.pop(MESH, None))
            if len(client.components) >= MOST_COMPONENTS:
                raise RefusedError(429, f"a tenant has at most {MOST_COMPONENTS} components", "TooMany")
            args, kwargs = served.constructor.bind(given, self._finder(client))
            made = JsonComponent(served.cls, group, "", busy=1)
            id_ = made.instance = client.add(made)
            request = {"kind": "create", "target": served.name, "group": group, "instance": id_, "mesh": mesh}
            try:
                await self._run(client, {**request, "args": list(args), "kwargs": dict(kwargs)}, request_id)
            except BaseException:
                client.components.pop(id_, None)
                raise
            finally:
                made.busy -= 1
            return msgspec.json.encode({"id": id_})

        return await self._answered(f"{served.cls.__name__}.__init__", work, 201)

    async def call(
        self, client: JsonClient, name: str, id_: str, method: str, body: bytes, request_id: str
    ) -> JsonAnswer:
        """Call a method; see `create`."""
        served = self.catalogue.find(name)
        found = served.method(method)
        component = client.find(served.cls, id_)

        async def work() -> bytes:
            args, kwargs = found.parameters.bind(_keywords(body), self._finder(client))
            request = _request(found, component)
            component.busy += 1
            try:
                if found.kind == "generate":
                    return await self._listed(
                        client, partial(self._items, client, found, component, args, kwargs, request_id)
                    )
                return await self._run(client, {**request, "args": list(args), "kwargs": dict(kwargs)}, request_id)
            finally:
                component.busy -= 1

        return await self._answered(found.parameters.name, work)

    async def release(self, client: JsonClient, name: str, id_: str, request_id: str) -> JsonAnswer:
        """Release a component."""
        served = self.catalogue.find(name)
        component = client.find(served.cls, id_)

        async def work() -> bytes:
            await self._drop(client, id_, component, request_id)
            return b""

        return await self._answered(f"{served.cls.__name__}.release", work, 204)

    async def _answered(self, call: str, work: Callable[[], Awaitable[bytes]], status: int = 200) -> JsonAnswer:
        try:
            return JsonAnswer(status, await work(), call)
        except RefusedError as error:
            return refusal_of(error, call)
        except JsonValueError as error:
            return answer_of(406, "NotJson", f"the result of {call}: {error}", call)
        except Exception as error:  # it is the caller's
            return answer_of(*described(error), call)

    async def _run(self, client: JsonClient, request: Mapping[str, Any], request_id: str) -> bytes:
        """Make a call, wait for it, and return its result as JSON."""
        if self._api.draining:
            raise stops()
        name, done = client.expect()
        try:
            loop = asyncio.get_running_loop()
            given = CallRequest(**request, line="plain JSON")
            executor, make = client.client.executor, partial(self._make, client.client, name, given, request_id)
            making = loop.run_in_executor(executor, make)
            try:
                result = await asyncio.shield(making)
                await _done(result, done)
            except asyncio.CancelledError:  # the client has hung up
                making.add_done_callback(_withdraw)
                raise
            return await asyncio.to_thread(self._result, client, result, request["kind"])
        finally:
            client.forget(name)

    def _make(self, client: RemoteClient, name: str, request: CallRequest, request_id: str) -> Result:
        try:
            return self._api.calls.make(client, name, request, request_id)
        except (TypeError, TwinkleError, RecursionError) as error:
            status, kind, why = described(error, sent=False)
            raise RefusedError(status, why, kind) from error

    def _result(self, client: JsonClient, result: Result, kind: str) -> bytes:
        """The JSON of a result, in a thread.

        Raises:
            Exception: The call failed.
        """
        if not isinstance(result, ServedCall):
            result.message()
            return b"null"
        result.call.wait(0.0)
        if kind == "next" and any(result.call.ended()):
            check_all_ended(result.call)
            return b'{"ended":true}'
        value = result.lazy.result()
        if kind == "iterate":
            value = None
        return to_json({"result": value}, lambda part: self._identify(client, part))

    async def _listed(self, client: JsonClient, items: Callable[[threading.Event], bytes]) -> bytes:
        """The items of a generator; a tenant's generators take some threads, and not those of others."""
        if client.listing >= MOST_LISTED:
            raise RefusedError(429, f"a tenant has at most {MOST_LISTED} generators at once in JSON", "TooMany")
        client.listing += 1
        is_gone = threading.Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(client.lists, items, is_gone)
        finally:
            is_gone.set()
            client.listing -= 1

    def _items(
        self,
        client: JsonClient,
        method: ServedMethod,
        component: JsonComponent,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        request_id: str,
        is_gone: threading.Event,
    ) -> bytes:
        """The JSON of all items of a generator, in a thread; it ends early when the client is gone."""
        if self._api.draining:
            raise stops()
        served = self._api.calls.components.find(client.client.tenant, component.group, component.instance)
        items: list[Any] = []
        with self._api.access_log.calling(method.parameters.name, client.client.tenant, request_id):
            with called_from(f"plain JSON, request {request_id}"):
                found = getattr(served.value, method.name)(*args, **kwargs)
                for item in found:
                    items.append(get(item))
                    if is_gone.is_set():
                        found.close()
                        return b""
                    if len(items) > MOST_ITEMS:
                        raise RefusedError(413, f"a generator has at most {MOST_ITEMS} items in JSON", "TooLarge")
            return to_json({"result": items}, lambda part: self._identify(client, part))

    def _identify(self, client: JsonClient, value: Any) -> str | None:
        """The id of a component for this tenant."""
        node = self._api.calls.describer(client.client)(value, lambda part: part)
        if node is None:
            return None
        _, name, group, instance, *_ = node
        cls = self.catalogue.named(name)
        return None if cls is None else client.identify(cls, group, instance)

    def _finder(self, client: JsonClient) -> Callable[[str], Any]:
        def find(id_: str) -> Any:
            found = client.components.get(id_)
            if found is None:
                raise unknown("component", id_)
            return self._api.calls.components.find(client.client.tenant, found.group, found.instance).value

        return find

    async def _drop(self, client: JsonClient, id_: str, component: JsonComponent, request_id: str) -> None:
        if component.owned:
            place = {"group": component.group, "instance": component.instance}
            await self._run(client, {"kind": "drop", **place}, request_id)
        client.components.pop(id_, None)

    async def _reap(self, client: JsonClient) -> None:
        """Release the components that nobody asked for, without an end."""
        lease = self._api.clients.lease * LEASES
        while True:
            await asyncio.sleep(min(5.0, lease / 10))
            for id_, component in client.idle(lease):
                try:
                    await self._drop(client, id_, component, f"lease-of-{id_}")
                except (RefusedError, TwinkleError):
                    client.components.pop(id_, None)


async def _done(result: Result, done: Awaitable[object]) -> None:
    """Wait for the end of a call, or for its deadline."""
    seconds = result.call.spec.timeout if isinstance(result, ServedCall) else None
    with suppress(TimeoutError):  # reading the result tells of it
        await asyncio.wait_for(done, seconds)


def _withdraw(making: asyncio.Future[Result]) -> None:
    """Cancel a call that nobody waits for."""
    result = None if making.cancelled() or making.exception() is not None else making.result()
    if isinstance(result, ServedCall):
        result.call.withdraw()


def _request(method: ServedMethod, component: JsonComponent) -> dict[str, Any]:
    return {"kind": method.kind, "target": method.name, "group": component.group, "instance": component.instance}


def _keywords(body: bytes) -> dict[str, Any]:
    try:
        given = msgspec.json.decode(body or b"{}")
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, ValueError) as error:
        raise RefusedError(400, f"the body is no JSON: {error}", "Malformed") from None
    if not isinstance(given, dict):
        raise RefusedError(400, "the body is a JSON object of keywords", "Malformed")
    level: list[Any] = [given]
    for _ in range(_DEEPEST):
        level = [part for one in level for part in (one.values() if isinstance(one, dict) else one)]
        level = [part for part in level if isinstance(part, dict | list)]
        if not level:
            return given
    raise RefusedError(400, f"the body has more than {_DEEPEST} values within values", "Malformed")


def _mesh(sizes: Any) -> DeviceMesh | None:
    if sizes is None:
        return None
    try:
        given = sizes.items() if isinstance(sizes, dict) else [("", None)]
        if not all(type(size) is int and key.endswith("_size") for key, size in given):
            raise TypeError("sizes by name, such as {'dp_size': 2}")
        return DeviceMesh.from_sizes(**sizes)
    except (TypeError, ValueError, OverflowError) as error:
        raise RefusedError(400, f"{MESH}: {error}", "InvalidArguments") from None
