"""Values in JSON: arguments by their annotations, results by their types."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from twinkle_http.annotations import Unknown
from twinkle_http.plain.choices import Choice, chosen, has_own_keys, name_of, stand_in
from twinkle_remote.protocol import component_of, is_component_type

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

_RESULT = ".result"  # behind the names of schemas
_VALUES = ("default", "const", "enum", "examples")
_TAKEN: dict[str | None, set[type]] = {
    "b": {bool},
    "i": {int},
    "u": {int},
    "f": {int, float, type(None)},  # null is a number that is not finite
    "U": {str},
}
"""The types of elements that an array takes as they are, by the kind of its dtype."""
_FLAT = {str, bytes, int, float, bool, type(None)}
_FIELDS = ("__dataclass_fields__", "__struct_fields__", "__attrs_attrs__")  # of what has fields in JSON
_NUMBERS = {"description": "numbers, as lists within lists"}


class JsonValueError(TypeError):
    """A value that JSON does not express; the message names its type."""


def json_type(annotation: Any) -> Any:
    """The type by which JSON of an annotated parameter is read; Any where JSON has nothing to check."""
    if isinstance(annotation, type) and issubclass(annotation, Unknown):
        return Any
    if annotation is object:
        return Any
    try:
        msgspec.json.schema_components([annotation], schema_hook=_any_schema)
        told = not has_own_keys(annotation)
    except Exception:  # of a union that JSON alone does not tell apart, or of annotations for type checkers only
        told = False
    return annotation if told else stand_in(annotation, json_type)


def to_value(value: Any, kind: Any, component: Callable[[str], Any]) -> Any:
    """A value of a type.

    Args:
        value: Plain values, as JSON has them.
        kind: What `json_type` returned.
        component: The component of an id.

    Raises:
        msgspec.ValidationError: It is none of this type; the message says where.
    """

    def make(wanted: type, given: Any) -> Any:
        if is_component_type(wanted) and isinstance(given, str):
            return component(given)
        if issubclass(wanted, Choice):
            return chosen(wanted, given, lambda member, part: to_value(part, member, component))
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None and _of(wanted, numpy.ndarray):
            return _array(numpy, wanted, given)
        if torch is not None and wanted is torch.Tensor:
            return _tensor(torch, given)
        raise JsonValueError(f"JSON does not express a {getattr(wanted, '__name__', wanted)}")

    made = msgspec.convert(value, kind, dec_hook=make, str_keys=True)  # keys in JSON are texts
    _check_fields(made, value, "$")
    return made


def _check_fields(made: Any, given: Any, at: str) -> None:
    """Check that all that was given is there.

    Raises:
        msgspec.ValidationError: A field is unknown, two keys of a mapping are one, or a decimal was a binary number.
    """
    if isinstance(given, float) and isinstance(made, Decimal):
        raise msgspec.ValidationError(f"Expected `str`, got a number, whose digits may be lost - at `{at}`")
    if isinstance(given, dict) and dataclasses.is_dataclass(made):
        fields = {field.name for field in dataclasses.fields(made)}
        _check_known(given.keys() - fields, fields, at)
        for name, part in given.items():
            _check_fields(getattr(made, name), part, f"{at}.{name}")
    elif isinstance(given, dict) and isinstance(made, Mapping):
        if len(made) < len(given):
            _check_known(given.keys() - set(map(str, made)) or given.keys(), map(str, made), at)
        for (name, part), own in zip(given.items(), made.values(), strict=False):
            _check_fields(own, part, f"{at}.{name}")
    elif isinstance(given, list) and isinstance(made, set | frozenset):
        for part in given if any(isinstance(own, Decimal) for own in made) else ():
            _check_fields(Decimal(), part, at)
    elif isinstance(given, list) and isinstance(made, list | tuple) and len(made) == len(given):
        for index, (own, part) in enumerate(zip(made, given, strict=True)):
            _check_fields(own, part, f"{at}[{index}]")


def _check_known(unknown: Collection[str], known: Iterable[str], at: str) -> None:
    if unknown:
        shown = ", ".join(repr(name[:80]) for name in sorted(unknown)[:8])
        have = "".join([f"; it has {', '.join(names)}" for names in [sorted(known)] if names])
        raise msgspec.ValidationError(f"Object has no fields {shown} - at `{at}`{have}")


def _of(wanted: Any, kind: type) -> bool:
    return wanted is kind or getattr(wanted, "__origin__", None) is kind


def _array(numpy: Any, wanted: Any, given: Any) -> Any:
    dtypes = [numpy.dtype(inner) for one in getattr(wanted, "__args__", ()) for inner in _arguments(one, numpy)]
    dtype = dtypes[0] if dtypes else None
    found = _elements(given, None if dtype is None else dtype.kind)
    try:
        made = numpy.asarray(given, dtype=dtype)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise JsonValueError(str(error)) from None
    if made.dtype.kind not in "biufU" or (found == {int} and dtype is None and made.dtype.kind == "f"):
        raise JsonValueError("an array has numbers of one shape and of one type")
    return made


def _tensor(torch: Any, given: Any) -> Any:
    _elements(given, None)
    try:
        return torch.tensor(given)
    except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
        raise JsonValueError(str(error)) from None


def _elements(given: Any, kind: str | None) -> set[type]:
    """The types of the elements of nested lists, none of which an array of a kind changes.

    Raises:
        JsonValueError: An element would become a value of another type.
    """
    found: set[type] = set()
    level = [given]
    while level:
        found.update(map(type, level))
        level = [element for part in level if type(part) is list for element in part]
    found.discard(list)
    taken = [_TAKEN[kind]] if kind in _TAKEN else list(_TAKEN.values())
    if not any(found <= one for one in taken):
        shown = ", ".join(sorted(one.__name__ for one in found))
        raise JsonValueError(f"an array of one type cannot hold elements of the types {shown} as they are")
    return found


def _arguments(one: Any, numpy: Any) -> Sequence[type]:
    """The scalar type of `numpy.dtype[scalar]`; nothing for others."""
    if getattr(one, "__origin__", None) is not numpy.dtype:
        return ()
    return [inner for inner in one.__args__ if isinstance(inner, type) and issubclass(inner, numpy.generic)]


def to_json(value: Any, identify: Callable[[Any], str | None]) -> bytes:
    """The JSON of a value. Numbers that are not finite become null.

    Args:
        value: Any value.
        identify: The id of a component; None for another one.

    Raises:
        JsonValueError: JSON does not express a part of it.
    """

    def make(part: Any) -> Any:
        found = None if component_of(part) is None else identify(part)
        if found is not None:
            return {"id": found}
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None and isinstance(part, numpy.ndarray | numpy.generic) and part.dtype.kind in "biufU":
            return part.tolist()
        if torch is not None and isinstance(part, torch.Tensor) and not part.is_complex():
            return part.detach().cpu().tolist()
        raise JsonValueError(f"JSON does not express a {type(part).__module__}.{type(part).__qualname__}")

    try:
        encoded = msgspec.json.encode(value, enc_hook=make)
        _check_keys(value, make)
    except JsonValueError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise JsonValueError(f"JSON does not express it: {error}") from None
    return encoded


def _check_keys(value: Any, make: Callable[[Any], Any]) -> None:
    """Check that no two keys of a mapping are one text in JSON.

    Args:
        value: Any value that JSON expresses.
        make: Makes plain values of what msgspec does not know.

    Raises:
        JsonValueError: Two are, such as 1 and "1".
    """
    if isinstance(value, list | tuple | set | frozenset):
        parts: Iterable[Any] = value if set(map(type, value)) - _FLAT else ()
    elif isinstance(value, Mapping):
        if len(set(map(type, value))) > 1:
            known: dict[bytes, Any] = {}
            for key in value:
                other = known.setdefault(msgspec.json.encode({key: None}), key)
                if other is not key:
                    raise JsonValueError(f"the keys {other!r:.80} and {key!r:.80} of a mapping are one key in JSON")
        parts = value.values()
    elif any(hasattr(value, mark) for mark in _FIELDS):
        parts = [msgspec.to_builtins(value, enc_hook=make)]
    else:
        return
    for part in parts:
        _check_keys(part, make)


def schemas(kinds: Sequence[Any]) -> tuple[Sequence[dict[str, Any]], dict[str, Any]]:
    """The JSON schema of the arguments of each type, and the schemas that they name."""
    found, named = msgspec.json.schema_components(
        kinds, schema_hook=_any_schema, ref_template="#/components/schemas/{name}"
    )
    return found, named


def result_schemas(kinds: Sequence[Any]) -> tuple[Sequence[dict[str, Any]], dict[str, Any]]:
    """The schemas of results: a number may be null, and a component is an object with its id."""
    found, named = msgspec.json.schema_components(
        kinds, schema_hook=_result_schema, ref_template=f"#/components/schemas/{{name}}{_RESULT}"
    )
    return [_returned(one) for one in found], {f"{name}{_RESULT}": _returned(one) for name, one in named.items()}


def _returned(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_returned(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: part if key in _VALUES else _returned(part) for key, part in schema.items()}
    return {**made, "type": ["number", "null"]} if made.get("type") == "number" else made


def _result_schema(kind: Any) -> dict[str, Any]:
    if is_component_type(kind):
        return {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
    return _any_schema(kind)


def _any_schema(kind: Any) -> dict[str, Any]:
    if is_component_type(kind):
        return {"type": "string", "description": f"id of a {kind.__name__}"}
    if issubclass(kind, Choice):
        return {"description": name_of(kind)}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and _of(kind, numpy.ndarray):
        return _NUMBERS
    if torch is not None and kind is torch.Tensor:
        return _NUMBERS
    return {"not": {}, "description": f"a {getattr(kind, '__name__', kind)}, which JSON does not express"}
