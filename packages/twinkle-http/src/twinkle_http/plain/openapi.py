"""The description of the JSON routes by OpenAPI 3.1, made of the annotations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from twinkle_http.plain.values import result_schemas, schemas
from twinkle_remote.backends.serving import GROUP, MESH

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_http.plain.catalogue import ServedClass, ServedMethod
    from twinkle_http.plain.parameters import JsonParameters

    SchemaOf = Callable[[Any], dict[str, Any]]

_ID = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}, "request": {"type": "string"}},
            "required": ["type", "message"],
        }
    },
    "required": ["error"],
}
_ENDED = {"type": "object", "properties": {"ended": {"const": True}}, "required": ["ended"]}
_PLACE = {
    GROUP: {"type": "string", "description": "the group whose workers hold it; may be left out if there is only one"},
    MESH: {
        "type": "object",
        "additionalProperties": {"type": "integer"},
        "description": "sizes of the device mesh, such as dp_size",
    },
}
_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "maxLength": 200},
    "description": "A request that is sent again under its key gets the first answer, and runs once.",
}


def openapi(classes: Sequence[ServedClass]) -> bytes:
    """The description, as JSON.

    Args:
        classes: The served classes.
    """
    parameters = [each for served in classes for each in _all_parameters(served)]
    given, named = _by_kind([kind for each in parameters for kind in _kinds(each)], schemas)
    returned, named_results = _by_kind([each.returns for each in parameters], result_schemas)
    paths: dict[str, Any] = {}
    for served in classes:
        paths.update(_paths(served, given, returned))
    described = {
        "openapi": "3.1.0",
        "info": {"title": "twinkle", "version": "1", "description": "Numbers that are not finite are null."},
        "paths": paths,
        "security": [{"token": []}],
        "components": {
            "schemas": named | named_results,
            "responses": {"Error": {"description": "type and message", "content": _content(_ERROR)}},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
    return msgspec.json.encode(described)


def _all_parameters(served: ServedClass) -> Sequence[JsonParameters]:
    return [served.constructor, *(method.parameters for method in served.methods.values())]


def _kinds(parameters: JsonParameters) -> Sequence[Any]:
    rest = [] if parameters.rest is None else [parameters.rest.type]
    return [*(one.type for one in parameters.listed), *rest]


def _by_kind(kinds: Sequence[Any], schemas_of: Callable[[Sequence[Any]], Any]) -> tuple[SchemaOf, dict[str, Any]]:
    found, named = schemas_of(kinds)
    by_id = {id(kind): schema for kind, schema in zip(kinds, found, strict=True)}
    return lambda kind: by_id[id(kind)], named


def _paths(served: ServedClass, schema: SchemaOf, returned: SchemaOf) -> dict[str, Any]:
    name = served.path
    id_ = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    made = _operation(f"{name}.create", f"Build a {name}.", _object(served.constructor, schema, _PLACE), 201, _ID)
    paths: dict[str, Any] = {
        f"/v1/{name}": {"post": made},
        f"/v1/{name}/{{id}}": {
            "parameters": [id_],
            "delete": _operation(f"{name}.release", f"Release a {name}.", None, 204, None),
        },
    }
    for method in served.methods.values():
        result: dict[str, Any] = {
            "type": "object",
            "properties": {"result": _collected(method, returned(method.parameters.returns))},
            "required": ["result"],
        }
        if method.name == "__next__":
            result = {"anyOf": [result, _ENDED]}
        given = _object(method.parameters, schema, {})
        text = method.text.partition("\n\n")[0] or f"{name}.{method.name}"
        paths[f"/v1/{name}/{{id}}/{method.name}"] = {
            "parameters": [id_],
            "post": _operation(f"{name}.{method.name}", text, given, 200, result),
        }
    return paths


def _collected(method: ServedMethod, one: dict[str, Any]) -> dict[str, Any]:
    """The schema of a collected result."""
    if method.kind == "generate":
        return {"type": "array"}
    if method.collect == "none":
        return {"anyOf": [one, {"type": "array", "items": one}]}
    return one if method.collect in ("flatten", "sum", "first") else {}


def _object(parameters: JsonParameters, schema: SchemaOf, more: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "object",
        "properties": {**{one.name: schema(one.type) for one in parameters.listed}, **more},
        "additionalProperties": False if parameters.rest is None else schema(parameters.rest.type),
    }
    required = [one.name for one in parameters.listed if one.required]
    return {**found, "required": required} if required else found


def _operation(
    name: str, text: str, given: dict[str, Any] | None, status: int, result: dict[str, Any] | None
) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": "done"}
    if result is not None:
        answer["content"] = _content(result)
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": text,
        "parameters": [_KEY],
        "responses": {str(status): answer, "default": {"$ref": "#/components/responses/Error"}},
    }
    if given is not None:
        operation["requestBody"] = {"content": _content(given), "required": bool(given.get("required"))}
    return operation


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
