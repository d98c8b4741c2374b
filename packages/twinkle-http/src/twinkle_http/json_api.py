"""JSON for other languages: components are built, called and released by their ids.

The signature of each function becomes a msgspec struct, which reads and checks its keyword arguments; parameters that
go by place alone are left out. A component that is built here is a client of its own: it lives as long as requests for
it come, because JSON has no sign of life.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from functools import lru_cache, partial
from types import GenericAlias
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from twinkle_http.gate import RefusedError
from twinkle_http.server.calls import result_of
from twinkle_http.server.components import remote_function, remote_names
from twinkle_http.types import annotations_of, constructor_parameters
from twinkle_mesh import DeviceMesh
from twinkle_remote.backends.support import Lazy, called_from
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
    from collections.abc import Callable, Mapping, Sequence

    from twinkle_http.server.calls import Calls
    from twinkle_http.server.clients import Clients
    from twinkle_http.server.components import Components

T = TypeVar("T")
_LEASES = 10.0  # a component without a request for so many leases is released
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


class JsonRequest(NamedTuple):
    """A request, after the gate: its tenant, its id, and its body."""

    tenant: str
    id: str
    body: bytes


class JsonApi:
    """Answers the requests in JSON.

    Args:
        groups: Names of the session's groups.
        components: The served classes and the components.
        clients: The clients, of which each component that is built here is one.
        calls: Counts and logs the calls.
    """

    def __init__(self, groups: Sequence[str], components: Components, clients: Clients, calls: Calls) -> None:
        self._groups, self._components, self._clients, self._calls = groups, components, clients, calls
        served = components.classes
        short = [cls.__name__ for cls in served.values()]
        self._classes = {cls.__name__ if short.count(cls.__name__) == 1 else name: cls for name, cls in served.items()}

    def described(self) -> bytes:
        """The routes by OpenAPI 3.1: the arguments as their structs say, results as any JSON."""
        structs = {f"/v1/{name}": _of_constructor(cls) for name, cls in self._classes.items()}
        for name, cls in self._classes.items():
            structs |= {f"/v1/{name}/{{id}}/{one}": _of_method(cls, one) for one in remote_names(cls)}
        template = "#/components/schemas/{name}"
        found, named = msgspec.json.schema_components(structs.values(), schema_hook=_anything, ref_template=template)
        id_ = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
        answers = {"default": {"description": "JSON, by the status"}}
        paths: dict[str, Any] = {
            f"/v1/{name}/{{id}}": {"parameters": [id_], "delete": {"responses": answers}} for name in self._classes
        }
        for path, schema in zip(structs, found, strict=True):
            post = {"requestBody": {"content": {"application/json": {"schema": schema}}}, "responses": answers}
            paths[path] = {"parameters": [id_] if "{id}" in path else [], "post": post}
        described = {
            "openapi": "3.1.0",
            "info": {"title": "twinkle", "version": "1"},
            "paths": paths,
            "security": [{"token": []}],
            "components": {"schemas": named, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        }
        return msgspec.json.encode(described)

    async def create(self, request: JsonRequest, name: str) -> bytes:
        """Build a component; the answer is its id."""
        cls = self._class(name)
        self._clients.check(request.tenant, "components")
        client = self._clients.open(request.tenant, _LEASES)

        def build() -> None:
            kwargs = self._arguments(_of_constructor(cls), name, request)
            groups = self._groups
            group = kwargs.pop("remote_group", {0: "local", 1: "".join(groups)}.get(len(groups)))
            if group is None:
                raise _invalid(f"remote_group names one of the groups {', '.join(map(repr, groups))}")
            if "device_mesh" in kwargs:
                try:
                    kwargs["device_mesh"] = DeviceMesh.from_sizes(**kwargs["device_mesh"])
                except (ValueError, TypeError) as error:
                    raise _invalid(str(error)) from None
            self._components.build((request.tenant, group, client.name), cls, (), kwargs)
            client.components.add((group, client.name))

        try:
            with client.asking():
                await self._done(f"{cls.__name__}.__init__", request, build)
        except BaseException:
            self._clients.forget(client)
            raise
        return msgspec.json.encode({"id": client.name})

    async def call(self, request: JsonRequest, name: str, id_: str, method: str) -> bytes:
        """Call a remote function; the answer is its value."""
        cls, label = self._class(name), f"{name}.{method}"
        if method not in remote_names(cls):
            raise RefusedError(403, f"{method[:80]!a} is no remote function of {name}", "NotServed")
        _, served = self._components.named(request.tenant, id_, cls)

        def work() -> bytes:
            made = served.begin(method, (), self._arguments(_of_method(cls, method), label, request))
            try:
                made = made if isinstance(made, Lazy) else made()
            except StopIteration:
                return b'{"ended":true}'
            return self._encoded(request.tenant, made.result() if isinstance(made, Lazy) else made, label)

        client = self._clients.get(id_, request.tenant)
        with client.asking() if client is not None else contextlib.nullcontext():
            return await self._done(label, request, work)

    async def release(self, request: JsonRequest, name: str, id_: str) -> bytes:
        """Release a component."""
        key, _ = self._components.named(request.tenant, id_, self._class(name))
        await self._done(f"{name}.release", request, lambda: self._calls.release(key))
        client = self._clients.get(id_, request.tenant)
        if client is not None:
            self._clients.forget(client)
        return b""

    async def _done(self, label: str, request: JsonRequest, work: Callable[[], T]) -> T:
        """The result of the work that a request asks for.

        Raises:
            RefusedError: The request does not fit, or its call has failed.
        """

        def called() -> T:
            try:
                with called_from(f"JSON, request {request.id}"):
                    return work()
            except Exception as error:  # it is the caller's
                raise _refusal(error) from error

        self._clients.check(request.tenant, "calls")
        with self._calls.counted(label, request.tenant, request.id):
            return await result_of(called)

    def _class(self, name: str) -> type:
        if name not in self._classes:
            raise RefusedError(403, f"{name[:80]!a} is not served; served are {', '.join(self._classes)}", "NotServed")
        return self._classes[name]

    def _arguments(self, struct: Any, label: str, request: JsonRequest) -> dict[str, Any]:
        """The keyword arguments of a request; raises RefusedError where they do not fit the signature."""
        hook = partial(_made, lambda id_: self._components.named(request.tenant, id_)[1].value)
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


@lru_cache(maxsize=4096)
def _of_constructor(cls: type) -> Any:
    """The struct of a constructor's keyword arguments, with those of placement."""
    place: dict[str, Any] = {"remote_group": str, "device_mesh": dict[str, int]}
    own = [one for name, one in constructor_parameters(cls).items() if name not in (*place, "instance_id")]
    more = [inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None) for key in place]
    return _struct_of(cls.__name__, [*own, *more], {**annotations_of(inspect.getattr_static(cls, "__init__")), **place})


@lru_cache(maxsize=4096)
def _of_method(cls: type, name: str) -> Any:
    """The struct of a remote function's keyword arguments."""
    function = remote_function(cls, name)
    own = [] if function is None else list(inspect.signature(function).parameters.values())[1:]
    return _struct_of(f"{cls.__name__}_{name}", own, {} if function is None else annotations_of(function))


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
    known = {"numpy.ndarray": "array", "torch.Tensor": "array"}.get(_name(kind))
    shown = "string" if isinstance(kind, type) and is_component_type(kind) else known
    return {"title": getattr(kind, "__name__", str(kind)), **({"type": shown} if shown else {})}


def _made(component: Callable[[str], Any], kind: Any, given: Any) -> Any:
    """A value that msgspec does not know: a component by its id, or an array of nested lists."""
    if isinstance(kind, type) and is_component_type(kind) and isinstance(given, str):
        return component(given)
    if _name(kind) == "numpy.ndarray":
        dtypes = [inner for one in getattr(kind, "__args__", ())[1:] for inner in getattr(one, "__args__", ())]
        return sys.modules["numpy"].asarray(given, next((one for one in dtypes if isinstance(one, type)), None))
    if _name(kind) == "torch.Tensor":
        return sys.modules["torch"].tensor(given)
    raise TypeError(f"JSON does not express a {getattr(kind, '__name__', kind)}")


def _name(kind: Any) -> str:
    """The name of a class, also of one with arguments in brackets."""
    found = getattr(kind, "__origin__", kind)
    return name_of(found) if isinstance(found, type) else ""


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
