"""Columns: the named parts of mappings, dataclasses and named tuples, and copies with other parts."""

from __future__ import annotations

import copy
import dataclasses
import importlib
from collections import UserDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from twinkle_remote.errors import DispatchError
from twinkle_remote.protocol.component import is_component_type

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")
_Form = Literal["mapping", "named tuple", "dataclass", "adapter"]
_forms: dict[type, _Form | None] = {}
_ADAPTERS = {("transformers", "BatchEncoding"): "transformers"}


def columns(value: object) -> Mapping[Any, object] | None:
    """The named parts of a mapping, dataclass or named tuple; None for everything else."""
    form = _form_of(type(value))
    if form is None:
        return None
    if form == "mapping":
        return cast("Mapping[Any, object]", value)
    if form == "named tuple":
        return dict(zip(cast("Any", value)._fields, cast("Any", value), strict=True))
    if form == "adapter":
        return cast("Mapping[Any, object]", _adapter(type(value)).columns(value))
    return {name: getattr(value, name) for name in _set_fields(value)}


def rebuild(value: T, parts: Sequence[object]) -> T:
    """A copy of a mapping, dataclass or named tuple with other parts, in the order that `columns` gave them.

    Raises:
        DispatchError: It is a mapping that cannot be made again.
    """
    if type(value) is dict:
        return cast("T", dict(zip(cast("Mapping[Any, object]", value), parts, strict=True)))
    form = _form_of(type(value))
    if form == "named tuple":
        return cast("T", cast("Any", value)._make(parts))
    if form in ("mapping", "adapter"):
        return with_items(value, dict(zip(cast("Any", columns(value)), parts, strict=True)))
    twin = copy.copy(value)
    for name, part in zip(_set_fields(value), parts, strict=True):
        object.__setattr__(twin, name, part)
    return twin


def with_items(value: T, items: dict[Any, object]) -> T:
    """A mapping of the type of `value`, with its attributes, and other items; it has at least the keys of `value`.

    Raises:
        DispatchError: Its type cannot be made again.
    """
    kind = type(value)
    if kind is dict:
        return cast("T", items)
    if _form_of(kind) == "adapter":
        return cast("T", _adapter(kind).with_items(value, items))
    try:
        twin = _filled(value, items) if issubclass(kind, dict | UserDict) else _constructed(value, items)
        wrong = [key for key in items if twin[key] is not items[key]]
    except Exception as error:  # the user's type may raise anything
        raise _not_again(kind, f"{type(error).__name__}: {error}") from error
    if wrong or len(twin) != len(items):
        raise _not_again(kind, f"of {list(items)} it keeps other values for {wrong}")
    return cast("T", twin)


def _filled(value: Any, items: dict[Any, object]) -> Any:
    twin = copy.copy(value)
    for key, part in items.items():
        twin[key] = part
    return twin


def _constructed(value: Any, items: dict[Any, object]) -> Any:
    """An object of the type with the items, and with the attributes that do not depend on the items."""
    kind = type(value)
    twin, same = kind(items), kind(dict(value))
    for name, own in getattr(value, "__dict__", {}).items():
        if not _unchanged(own, getattr(same, name, None)):
            setattr(twin, name, own)
    return twin


def _unchanged(own: object, made: object) -> bool:
    try:
        return own is made or (type(own) is type(made) and bool(own == made))
    except Exception:  # arrays have no truth value; a wrong guess is found when the items are compared
        return False


def _not_again(kind: type, why: str) -> DispatchError:
    return DispatchError(
        f"a {kind.__name__} is a mapping with rows, but its type cannot be made again of other items ({why}); pass a "
        f"dict, Replicate(value) to send it whole, or teach it with register_splitter({kind.__name__}, splitter)"
    )


def is_mapping(value: object) -> bool:
    """Whether the parts of a value are those of a dict, which may differ from one value to the next."""
    return _form_of(type(value)) in ("mapping", "adapter")


def below(path: str, value: object, key: object) -> str:
    """The path of a named part of a value."""
    return f"{path}[{key!r}]" if is_mapping(value) else f"{path}.{key}"


def _form_of(kind: type) -> _Form | None:
    try:
        return _forms[kind]
    except KeyError:
        return _forms.setdefault(kind, _find_form(kind))


def _find_form(kind: type) -> _Form | None:
    if is_component_type(kind):
        return None
    if issubclass(kind, Mapping):
        return "mapping" if _adapter_name(kind) is None else "adapter"
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return "named tuple"
    return "dataclass" if dataclasses.is_dataclass(kind) else None


def _adapter_name(kind: type) -> str | None:
    found = (_ADAPTERS.get((base.__module__.partition(".")[0], base.__name__)) for base in kind.__mro__)
    return next(filter(None, found), None)


def _adapter(kind: type) -> Any:
    return importlib.import_module(f"twinkle_remote.values.adapters.{_adapter_name(kind)}")


def _set_fields(value: object) -> list[str]:
    fields = dataclasses.fields(cast("Any", value))
    return [field.name for field in fields if hasattr(value, field.name)]
