"""JSON for other languages: components are built, called and released by their ids.

The signature of each function becomes a msgspec struct, which reads and checks its keyword arguments; parameters that
go by place alone are left out. Each request runs in a thread of its own. A component that was built here lives as
long as requests for it come: JSON has no sign of life.
"""

from __future__ import annotations

import contextlib
import inspect
import secrets
import sys
import time
from functools import lru_cache, partial
from types import GenericAlias
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from twinkle_http.gate import RefusedError, stops
from twinkle_http.server.components import placement
from twinkle_http.server.ends import result_of
from twinkle_http.types import annotations_of
from twinkle_http.wire import MOST_HEAD_BYTES
from twinkle_mesh import DeviceMesh
from twinkle_remote import release
from twinkle_remote.backends.serving import (
    GROUP,
    INSTANCE,
    MESH,
    CallResult,
    called_from,
    check_all_ended,
    constructor_signature,
    remote_function,
    remote_names,
    start,
    unintercepted,
)
from twinkle_remote.errors import (
    CallTimeoutError,
    DispatchError,
    NotInitializedError,
    PlacementError,
    RemoteCallError,
)
from twinkle_remote.protocol import component_of, is_component_type
from twinkle_remote.rows import name_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from twinkle_http.server.clients import Clients
    from twinkle_http.server.components import Components, Key, ServedComponent
    from twinkle_http.server.ends import Ends
    from twinkle_remote.backends.serving import ServedSession

LEASES = 10  # a component without a request for so many leases is released
_MOST_CHARACTERS = 2000  # of an error
_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
_STATUS: Mapping[type[Exception], int] = {
    CallTimeoutError: 504,
    NotInitializedError: 503,
    PlacementError: 400,
    DispatchError: 400,
    RemoteCallError: 500,
    TypeError: 400,  # it was not sent
}


class _Request(NamedTuple):
    tenant: str
    id: str
    body: bytes

    @property
    def line(self) -> str:
        """The line of its caller, for errors."""
        return f"JSON, request {self.id}"


class JsonApi:
    """Answers the requests in JSON, with a body of at most `most` bytes each."""

    def __init__(self, session: ServedSession, components: Components, clients: Clients, ends: Ends, most: int) -> None:
        self._session, self._components, self._clients, self._ends = session, components, clients, ends
        self._most = min(most, MOST_HEAD_BYTES)
        served = components.classes
        short = [cls.__name__ for cls in served.values()]
        self._classes = {cls.__name__ if short.count(cls.__name__) == 1 else name: cls for name, cls in served.items()}

    async def answer(
        self, scope: Any, read: Callable[[int], Awaitable[bytearray]], draining: bool
    ) -> tuple[int, bytes]:
        """Status and body of the answer to a request, whose body `read` reads up to so many bytes.

        Raises:
            RefusedError: The request does not fit, or its call has failed, or the server drains.
        """
        work: Callable[..., bytes]
        match scope["method"], scope["path"].split("/")[1:]:
            case "GET", ["openapi.json"]:
                return 200, await result_of(self._described)
            case "POST", ["v1", *names] if len(names) == 1:
                status, work = 201, self._create
            case "POST", ["v1", *names] if len(names) == 3:
                status, work = 200, self._call
            case "DELETE", ["v1", *names] if len(names) == 2:
                status, work = 204, self._release
            case _:
                raise RefusedError(404, "there is nothing here, or not for this verb", "NoRoute")
        tenant, request_id = scope["state"]["tenant"], scope["state"]["request"]
        request = _Request(tenant, request_id, bytes(await read(self._most)))
        if draining:
            raise stops()
        self._clients.use(tenant).check("calls")
        try:
            return status, await result_of(partial(work, request, *names))
        except Exception as error:  # it is the caller's
            raise _refusal(error) from None

    def _described(self) -> bytes:
        """The routes by OpenAPI 3.1: the arguments as their structs say, results as any JSON."""
        structs = {f"/v1/{name}": _of_constructor(cls) for name, cls in self._classes.items()}
        for name, cls in self._classes.items():
            structs |= {f"/v1/{name}/{{id}}/{one}": _of_method(cls, one) for one in remote_names(cls)}
        template = "#/components/schemas/{name}"
        found, named = msgspec.json.schema_components(structs.values(), schema_hook=_anything, ref_template=template)
        id_ = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
        failed = {"description": "an error with its type, message and request"}
        paths: dict[str, dict[str, Any]] = {}
        for (path, _), schema in zip(structs.items(), found, strict=True):
            status = "200" if "{id}" in path else "201"
            body = {"content": {"application/json": {"schema": schema}}}
            responses = {status: {"description": "done"}, "default": failed}
            own = {"parameters": [id_]} if "{id}" in path else {}
            paths[path] = {**own, "post": {"requestBody": body, "responses": responses}}
        for name in self._classes:
            responses = {"204": {"description": "done"}, "default": failed}
            paths[f"/v1/{name}/{{id}}"] = {"parameters": [id_], "delete": {"responses": responses}}
        described = {
            "openapi": "3.1.0",
            "info": {"title": "twinkle", "version": "1"},
            "paths": paths,
            "security": [{"token": []}],
            "components": {"schemas": named, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        }
        return msgspec.json.encode(described)

    def _class(self, name: str) -> type:
        if name not in self._classes:
            raise RefusedError(403, f"{name[:80]!a} is not served; served are {', '.join(self._classes)}", "NotServed")
        return self._classes[name]

    def _find(self, tenant: str, id_: str, cls: type | None = None) -> tuple[Key, ServedComponent]:
        """A component of a tenant by its id."""
        key, served = self._components.named(tenant, id_, cls)
        served.asked = served.asked and time.monotonic()
        return key, served

    def _create(self, request: _Request, name: str) -> bytes:
        cls, tenant = self._class(name), request.tenant
        kwargs = self._arguments(_of_constructor(cls), name, request)
        groups = tuple(self._session.groups)
        group = kwargs.pop(GROUP, {0: "local", 1: "".join(groups)}.get(len(groups)))
        if group is None:
            raise _invalid(f"{GROUP} names one of the groups {', '.join(map(repr, groups))}")
        if MESH in kwargs:
            try:
                kwargs[MESH] = DeviceMesh.from_sizes(**kwargs[MESH])
            except (ValueError, TypeError) as error:
                raise _invalid(str(error)) from None
        use = self._clients.use(tenant)
        use.check("components")
        key = tenant, str(group), secrets.token_hex(8)
        make = partial(cls, **placement(cls, kwargs, group))
        with self._calling(f"{cls.__name__}.__init__", request):
            built = self._components.build(key, cls, make)
        built.asked = time.monotonic()
        use.add("components")
        return msgspec.json.encode({"id": key[2]})

    def _call(self, request: _Request, name: str, id_: str, method: str) -> bytes:
        cls, tenant, label = self._class(name), request.tenant, f"{name}.{method}"
        remote = remote_function(cls, method)
        if remote is None:
            raise RefusedError(403, f"{method[:80]!a} is no remote function of {name}", "NotServed")
        _, served = self._find(tenant, id_, cls)
        component = component_of(served.value)
        if component is None:
            raise NotInitializedError("this component is gone: the session that built it has ended")
        kwargs = self._arguments(_of_method(cls, method), label, request)
        served.busy += 1
        try:
            with self._calling(label, request):
                pending = start(remote.call(component, request.line, (), kwargs), held=True)
                value = CallResult(pending, served.value).value(None)
                if remote.kind == "next" and any(pending.ended()):
                    check_all_ended(pending)
                    return b'{"ended":true}'
            return self._encoded(tenant, None if remote.kind == "iterate" else value, label)
        finally:
            served.busy -= 1
            served.asked = served.asked and time.monotonic()

    def _arguments(self, struct: Any, label: str, request: _Request) -> dict[str, Any]:
        """The keyword arguments of a request; raises RefusedError where they do not fit the signature."""
        component = partial(self._find, request.tenant)
        hook = partial(_made, lambda id_: component(id_)[1].value)
        try:
            found = msgspec.structs.asdict(msgspec.json.decode(request.body or b"{}", type=struct, dec_hook=hook))
        except RefusedError:
            raise
        except Exception as error:  # a dataclass may refuse its fields with any error
            raise _invalid(f"{label}: {str(error) or type(error).__name__}") from None
        given = {name: value for name, value in found.items() if value is not msgspec.UNSET}
        given.update(given.pop(struct.options, {}))
        return given

    def _encoded(self, tenant: str, value: Any, label: str) -> bytes:
        """The JSON of a result; numbers that are not finite become null."""

        def plain(part: Any) -> Any:
            if component_of(part) is not None:
                return {"id": self._components.ids(tenant, part)[1]}
            numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
            if torch is not None and isinstance(part, torch.Tensor):
                return part.detach().cpu().tolist()
            if numpy is not None and isinstance(part, numpy.ndarray | numpy.generic):
                return part.tolist()
            raise TypeError(f"JSON does not express a {name_of(type(part))}")

        try:
            return msgspec.json.encode({"result": plain(value) if component_of(value) else value}, enc_hook=plain)
        except Exception as error:
            raise RefusedError(406, f"the result of {label}: {error}"[:_MOST_CHARACTERS], "NotJson") from None

    def _release(self, request: _Request, cls: str, id_: str) -> bytes:
        key, _ = self._find(request.tenant, id_, self._class(cls))
        with self._calling(f"{cls}.release", request):
            self._drop(key)
        return b""

    def _drop(self, key: Key) -> None:
        """Release a component; a second time does nothing."""
        served = self._components.remove(key)
        if served is None:
            return
        if served.asked is not None:
            self._clients.use(key[0]).add("components", -1)
        if not self._session.closed:
            release(served.value)

    def release_idle(self, seconds: float) -> None:
        """Release what was built here and had no request for so many seconds; waits for the releases."""
        before = time.monotonic() - seconds
        for key, served in self._components.built():
            if served.asked is not None and served.asked < before and not served.busy:
                self._drop(key)

    @contextlib.contextmanager
    def _calling(self, name: str, request: _Request) -> Iterator[None]:
        ended, error = self._ends.begun(name, request.tenant, self._clients.use(request.tenant), request.id), None
        try:
            with called_from(request.line):
                yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            ended(error)


@lru_cache(maxsize=4096)
def _of_constructor(cls: type) -> Any:
    """The struct of a constructor's keyword arguments, with those of placement."""
    annotations = annotations_of(unintercepted(inspect.getattr_static(cls, "__init__")))
    signature = constructor_signature(cls) or inspect.Signature()
    own = [one for one in signature.parameters.values() if one.name not in (GROUP, MESH, INSTANCE)]
    place = [inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None) for key in (GROUP, MESH)]
    return _struct_of(cls.__name__, [*own, *place], {**annotations, GROUP: str, MESH: dict[str, int]})


@lru_cache(maxsize=4096)
def _of_method(cls: type, name: str) -> Any:
    """The struct of a remote function's keyword arguments."""
    remote = remote_function(cls, name)
    if remote is None or remote.function is None or remote.signature is None:
        return _struct_of(f"{cls.__name__}_{name}", (), {})
    own = list(remote.signature.parameters.values())[1:]
    return _struct_of(f"{cls.__name__}_{name}", own, annotations_of(remote.function))


def _struct_of(name: str, parameters: Sequence[inspect.Parameter], annotations: Mapping[str, Any]) -> Any:
    """A msgspec struct of a name, with a field for each parameter; `options` is the name of its `**options`."""
    fields: list[Any] = []
    options = ""
    for one in parameters:
        kind = _json_type(annotations.get(one.name, Any))
        if one.kind is one.VAR_KEYWORD:
            options, kind = one.name, GenericAlias(dict, (str, kind))
        if one.kind not in _BY_PLACE:
            required = one.default is one.empty and one.kind is not one.VAR_KEYWORD
            fields.append((one.name, kind) if required else (one.name, kind | msgspec.UnsetType, msgspec.UNSET))
    made: Any = msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
    made.options = options
    return made


def _json_type(annotation: Any) -> Any:
    """The type by which JSON is read; Any where msgspec tells its members not apart, as in a union of dataclasses."""
    try:
        msgspec.json.Decoder(annotation)
    except Exception:  # of whatever a class of the user's raises when it is looked at
        return Any
    return Any if annotation is object else annotation


def _anything(kind: Any) -> dict[str, Any]:
    """The schema of a type that msgspec does not know: a component is its id, an array a list."""
    is_component = isinstance(kind, type) and is_component_type(kind)
    is_array = _is(kind, "numpy", "ndarray") or _is(kind, "torch", "Tensor")
    known = {"type": "string"} if is_component else {"type": "array"} if is_array else {}
    return {"title": getattr(kind, "__name__", str(kind)), **known}


def _made(component: Callable[[str], Any], kind: Any, given: Any) -> Any:
    """A value that msgspec does not know: a component by its id, or an array of nested lists."""
    if isinstance(kind, type) and is_component_type(kind) and isinstance(given, str):
        return component(given)
    if _is(kind, "numpy", "ndarray"):
        dtypes = [inner for one in getattr(kind, "__args__", ())[1:] for inner in getattr(one, "__args__", ())]
        made = sys.modules["numpy"].asarray(given, dtype=next((one for one in dtypes if isinstance(one, type)), None))
        if made.dtype.hasobject:
            raise ValueError("an array has elements of one type")
        return made
    if _is(kind, "torch", "Tensor"):
        return sys.modules["torch"].tensor(given)
    raise TypeError(f"JSON does not express a {getattr(kind, '__name__', kind)}")


def _is(kind: Any, module: str, name: str) -> bool:
    wanted = getattr(sys.modules.get(module), name, None)
    return wanted is not None and getattr(kind, "__origin__", kind) is wanted


def _invalid(why: str) -> RefusedError:
    return RefusedError(400, why[:_MOST_CHARACTERS], "InvalidArguments")


def _refusal(error: Exception) -> RefusedError:
    """The answer to a request that has failed."""
    if isinstance(error, RefusedError):
        return error
    failures = getattr(error, "failures", ())
    kind = failures[0].type_name if failures else type(error).__name__
    message = failures[0].message if failures else str(error).partition("\n")[0]
    status = next((status for one, status in _STATUS.items() if isinstance(error, one)), 500)
    return RefusedError(status, message.encode("utf-8", "replace").decode()[:_MOST_CHARACTERS], kind.rpartition(".")[2])
