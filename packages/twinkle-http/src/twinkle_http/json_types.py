"""Functions in JSON: the signature of each becomes a msgspec struct, which reads, checks and describes its arguments.

What msgspec does not know is read by the annotation too: a component by its id, an array or a tensor of nested lists. A
parameter whose members JSON does not tell apart, such as a union of two dataclasses, takes any JSON.
"""

from __future__ import annotations

import inspect
import sys
from functools import cached_property
from types import GenericAlias
from typing import TYPE_CHECKING, Any

import msgspec

from twinkle_http.server.gate import RefusedError
from twinkle_http.types import annotations_of
from twinkle_remote.backends.serving import (
    GROUP,
    INSTANCE,
    MESH,
    constructor_signature,
    remote_function,
    remote_names,
    unintercepted,
)
from twinkle_remote.protocol import component_of, is_component_type
from twinkle_remote.rows import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MOST_CHARACTERS = 2000  # of an error
_ID = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}


class JsonFunction:
    """A function whose arguments are read from JSON.

    Args:
        name: Class.method.
        parameters: Its parameters, without `self`.
        annotations: Their types, and that of its result.
        text: Its documentation.
    """

    def __init__(
        self,
        name: str,
        parameters: Sequence[inspect.Parameter],
        annotations: Mapping[str, Any],
        text: str = "",
    ) -> None:
        self.name = name
        self.text = text.partition("\n\n")[0]
        self.returns = _json_type(annotations.get("return", Any))
        self._parameters = parameters
        fields: list[Any] = []
        for one in self._parameters:
            kind = _json_type(annotations.get(one.name, Any))
            if one.kind is one.VAR_POSITIONAL:
                kind = GenericAlias(list, (kind,))
            elif one.kind is one.VAR_KEYWORD:
                kind = GenericAlias(dict, (str, kind))
            many = one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
            required = one.default is one.empty and not many
            left_out = (one.name, kind | msgspec.UnsetType, msgspec.UNSET)
            fields.append((one.name, kind) if required else left_out)
        struct = name.replace(".", "_") + "_arguments"
        self.arguments = msgspec.defstruct(struct, fields, kw_only=True, forbid_unknown_fields=True)

    def bind(self, body: bytes, component: Callable[[str], Any]) -> tuple[list[Any], dict[str, Any]]:
        """The positional and the keyword arguments.

        Args:
            body: The JSON object; empty for none.
            component: The component of an id.

        Raises:
            RefusedError: They do not fit the signature.
        """
        try:
            found: Any = msgspec.json.decode(
                body or b"{}", type=self.arguments, dec_hook=lambda kind, part: _made(kind, part, component)
            )
        except RefusedError:
            raise
        except Exception as error:  # a dataclass may refuse its fields with any error
            raise invalid(f"{self.name}: {str(error) or type(error).__name__}") from None
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        gap = ""
        for one in self._parameters:
            value = getattr(found, one.name)
            if value is msgspec.UNSET:
                gap = gap or one.name
            elif one.kind is one.VAR_KEYWORD:
                kwargs.update(value)
            elif one.kind is one.VAR_POSITIONAL and gap:
                raise invalid(f"{self.name}: {one.name!r} goes by place, and {gap!r} before it is missing")
            elif one.kind is one.VAR_POSITIONAL:
                args.extend(value)
            elif one.kind is one.KEYWORD_ONLY or gap:
                kwargs[one.name] = value
            else:
                args.append(value)
        return args, kwargs


def _json_type(annotation: Any) -> Any:
    """The type by which JSON is read and described; Any where msgspec tells its members not apart."""
    try:
        msgspec.json.Decoder(annotation)
        msgspec.json.schema_components([annotation], schema_hook=_schema)
    except Exception:
        return Any
    return Any if annotation is object else annotation


def _is(kind: Any, module: str, name: str) -> bool:
    wanted = getattr(sys.modules.get(module), name, None)
    return wanted is not None and getattr(kind, "__origin__", kind) is wanted


def _made(kind: Any, given: Any, component: Callable[[str], Any]) -> Any:
    """A value that msgspec does not know: a component by its id, or an array of nested lists."""
    if isinstance(kind, type) and is_component_type(kind) and isinstance(given, str):
        return component(given)
    if _is(kind, "numpy", "ndarray"):
        dtypes = [inner for one in getattr(kind, "__args__", ())[1:] for inner in getattr(one, "__args__", ())]
        numpy = sys.modules["numpy"]
        made = numpy.asarray(given, dtype=dtypes[0] if dtypes and isinstance(dtypes[0], type) else None)
        if made.dtype.hasobject:
            raise ValueError("an array has elements of one type")
        return made
    if _is(kind, "torch", "Tensor"):
        try:
            return sys.modules["torch"].tensor(given)
        except RuntimeError as error:
            raise ValueError(str(error)) from None
    raise TypeError(f"JSON does not express a {getattr(kind, '__name__', kind)}")


def _schema(kind: Any) -> dict[str, Any]:
    if isinstance(kind, type) and is_component_type(kind):
        return {"anyOf": [{"type": "string"}, _ID], "description": f"id of a {kind.__name__}"}
    if _is(kind, "numpy", "ndarray") or _is(kind, "torch", "Tensor"):
        return {"description": "numbers, as lists within lists"}
    return {"description": f"a {getattr(kind, '__name__', kind)}"}


def invalid(why: str) -> RefusedError:
    """The answer to arguments that do not fit."""
    return RefusedError(400, why[:MOST_CHARACTERS], "InvalidArguments")


class JsonClass:
    """A served class, with its constructor and its remote functions.

    Args:
        cls: The class.
        path: Its name in a path.
    """

    def __init__(self, cls: type, path: str) -> None:
        self.cls, self.path = cls, path

    @cached_property
    def constructor(self) -> JsonFunction:
        """Its constructor, with the keywords of placement."""
        annotations: dict[str, Any] = {}
        for base in reversed(self.cls.__mro__[:-1]):
            for name in ("__new__", "__init__"):
                found = getattr(vars(base).get(name), "__func__", vars(base).get(name))
                if inspect.isroutine(found):
                    annotations |= annotations_of(unintercepted(found))
        signature = constructor_signature(self.cls) or inspect.Signature()
        own = [one for one in signature.parameters.values() if one.name not in (GROUP, MESH, INSTANCE)]
        place = [inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None) for key in (GROUP, MESH)]
        return JsonFunction(self.path, [*own, *place], {**annotations, GROUP: str, MESH: dict[str, int]})

    @cached_property
    def methods(self) -> Mapping[str, JsonFunction]:
        """Its remote functions by name, with the special methods that travel."""
        return {name: self._function(name) for name in remote_names(self.cls)}

    def _function(self, name: str) -> JsonFunction:
        remote = remote_function(self.cls, name)
        assert remote is not None
        label, function = f"{self.path}.{name}", remote.function
        if function is None or remote.signature is None:
            return JsonFunction(label, (), {})
        own = list(remote.signature.parameters.values())[1:]
        annotations = annotations_of(function)
        if remote.spec.collect == "none":
            annotations["return"] = Any  # one value, or a list of the workers' values
        text = inspect.cleandoc(function.__doc__ or "")
        return JsonFunction(label, own, annotations, text)


def encoded(value: Any, name: str, id_of: Callable[[Any], str]) -> bytes:
    """The JSON of a result; numbers that are not finite become null."""

    def plain(part: Any) -> Any:
        if component_of(part) is not None:
            return {"id": id_of(part)}
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if torch is not None and isinstance(part, torch.Tensor):
            return part.detach().cpu().tolist()
        if numpy is not None and isinstance(part, numpy.ndarray | numpy.generic):
            return part.tolist()
        raise TypeError(f"JSON does not express a {name_of(type(part))}")

    try:
        return msgspec.json.encode({"result": plain(value) if component_of(value) else value}, enc_hook=plain)
    except RefusedError:
        raise
    except Exception as error:
        raise RefusedError(406, f"the result of {name}: {error}"[:MOST_CHARACTERS], "NotJson") from None


def described(classes: Sequence[JsonClass]) -> dict[str, Any]:
    """The description of the routes by OpenAPI 3.1."""
    template = "#/components/schemas/{name}"
    functions = [one for served in classes for one in (served.constructor, *served.methods.values())]
    kinds = [kind for one in functions for kind in (one.arguments, one.returns)]
    found, named = msgspec.json.schema_components(kinds, schema_hook=_schema, ref_template=template)
    schemas = iter(found)
    error = {"type": "object", "properties": {"error": {"type": "object"}}, "required": ["error"]}
    paths: dict[str, Any] = {}

    def operation(function: JsonFunction, given: Any, status: int, result: Any) -> dict[str, Any]:
        answer = {"description": "done"} | ({} if result is None else {"content": _content(result)})
        failed = {"description": "type, message and request", "content": _content(error)}
        body = {} if given is None else {"requestBody": {"content": _content(given)}}
        told = {"operationId": f"{function.name}.{status}", "summary": function.text or function.name}
        return {**told, **body, "responses": {str(status): answer, "default": failed}}

    id_ = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
    for served in classes:
        made, _ = next(schemas), next(schemas)
        path = f"/v1/{served.path}"
        paths[path] = {"post": operation(served.constructor, made, 201, _ID)}
        paths[f"{path}/{{id}}"] = {"parameters": id_, "delete": operation(served.constructor, None, 204, None)}
        for name, method in served.methods.items():
            given, returned = next(schemas), next(schemas)
            result = {"type": "object", "properties": {"result": returned, "ended": {"const": True}}}
            paths[f"{path}/{{id}}/{name}"] = {"parameters": id_, "post": operation(method, given, 200, result)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "twinkle", "version": "1", "description": "Numbers that are not finite are null."},
        "paths": paths,
        "security": [{"token": []}],
        "components": {"schemas": named, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _content(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
