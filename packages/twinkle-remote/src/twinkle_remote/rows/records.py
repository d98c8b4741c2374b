"""Records: dicts, dataclasses and tuples, whose rows are those of their parts; and records of other parts."""

from __future__ import annotations

import copy
import dataclasses
from collections import UserDict
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from twinkle_remote.errors import DispatchError
from twinkle_remote.protocol.messages import is_component_type
from twinkle_remote.rows.row_types import sequence_like
from twinkle_remote.rows.unknown import is_tensor_collection, refuse_attributes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

T = TypeVar("T")
_Form = Literal["mapping", "encoding", "named tuple", "tuple", "dataclass"]
_forms: dict[type, _Form | None] = {}
_ENCODINGS = "encodings of the tokenizer"


def parts_of(value: object) -> Mapping[Any, object] | None:
    """The parts of a dict, a `UserDict`, a dataclass or a tuple, by name or place; None for everything else.

    Where a tokenizer keeps encodings, its `BatchEncoding` has one for each text: the tokens of a single text are
    therefore not rows, because their number differs from the one encoding.
    """
    one: Any = value
    form = _form_of(type(value))
    if form is None:
        return None
    if form == "mapping":
        if type(value) is dict:
            return cast("Mapping[Any, object]", value)
        return {key: one[key] for key in one}
    if form == "tuple":
        return dict(enumerate(one))
    if form == "named tuple":
        return dict(zip(one._fields, tuple.__iter__(one), strict=True))
    if form == "encoding":
        return one.data if one.encodings is None else {**one.data, _ENCODINGS: one.encodings}
    return {name: getattr(value, name) for name in _set_fields(value)}


def rebuild(value: T, parts: Sequence[object], *, whole: bool = False) -> T:
    """A record of other parts, in the order of `parts_of`.

    Args:
        value: The record.
        parts: The parts.
        whole: They are of the same rows in another form: attributes of its own stay, and no constructor runs. Otherwise
            a dataclass is made by its constructor: a share, or a joined value, computes what is made of the fields.

    Raises:
        DispatchError: It cannot be made again, or has attributes of its own.
    """
    form, one = _form_of(type(value)), cast("Any", value)
    if form in ("mapping", "encoding"):
        return with_items(value, dict(zip(cast("Any", parts_of(value)), parts, strict=True)), whole=whole)
    if form == "dataclass":
        if not whole:
            return cast("T", _replaced(value, parts))
        twin = copy.copy(one)
        for name, part in zip(_set_fields(value), parts, strict=True):
            object.__setattr__(twin, name, part)  # also of a frozen one
        return cast("T", twin)
    if not whole:
        refuse_attributes(value)
    made = one._make(parts) if form == "named tuple" else sequence_like(value, parts)
    if hasattr(value, "__dict__"):
        made.__dict__.update(vars(value))
    return cast("T", made)


def with_parts(value: T, parts: Sequence[object]) -> T:
    """A record of the same rows in another form; see `rebuild`."""
    return rebuild(value, parts, whole=True)


def with_items(value: T, items: dict[Any, object], *, whole: bool = False) -> T:
    """A dict of the type of `value` with other items.

    Args:
        value: The dict; never mutated.
        items: The items.
        whole: They are of the same rows, so that attributes of its own stay.

    Raises:
        DispatchError: It cannot be copied, or has attributes of its own.
    """
    kind: Any = type(value)
    if kind is dict:
        return cast("T", items)
    if _form_of(kind) == "encoding":
        data = dict(items)
        return cast("T", kind(data, encoding=data.pop(_ENCODINGS, None), n_sequences=cast("Any", value).n_sequences))
    if not whole:
        refuse_attributes(value, {"data", *items} if issubclass(kind, UserDict) else items)
    try:
        twin: Any = copy.copy(value)
        if items.keys() != twin.keys():
            twin.clear()
        for key, part in items.items():
            twin[key] = part
    except Exception as error:  # the user's type may raise anything
        raise _not_again(kind, f"{type(error).__name__}: {error}") from error
    return cast("T", twin)


def _replaced(value: Any, parts: Sequence[object]) -> Any:
    kind = type(value)
    given = {field.name for field in dataclasses.fields(value) if field.init}
    named = zip(_set_fields(value), parts, strict=True)
    try:
        made = dataclasses.replace(value, **{name: part for name, part in named if name in given})
    except Exception as error:  # the constructor of a user's class may raise anything
        raise _not_again(kind, f"{type(error).__name__}: {error}") from error
    known = {*getattr(made, "__dict__", ()), *(name for base in kind.__mro__ for name in vars(base))}  # caches too
    refuse_attributes(value, known)
    return made


def _not_again(kind: type, why: str) -> DispatchError:
    return DispatchError(
        f"a {kind.__name__} has rows, but its type cannot be made again of other parts ({why}); pass a "
        f"dict, Replicate(value) to send it whole, or teach it with register_rows({kind.__name__}, ...)"
    )


def is_mapping(value: object) -> bool:
    """Whether the parts of a value are those of a dict, which may differ from one value to the next."""
    return _form_of(type(value)) in ("mapping", "encoding")


def part_path(path: str, value: object, key: object) -> str:
    """The path of a named part of a value."""
    return f"{path}[{key!r}]" if isinstance(key, int) or is_mapping(value) else f"{path}.{key}"


def _form_of(kind: type) -> _Form | None:
    try:
        return _forms[kind]
    except KeyError:
        return _forms.setdefault(kind, _find_form(kind))


def _find_form(kind: type) -> _Form | None:
    if is_component_type(kind) or is_tensor_collection(kind):
        return None
    if issubclass(kind, dict | UserDict):
        of_library = {(base.__module__.partition(".")[0], base.__name__) for base in kind.__mro__}
        return "encoding" if ("transformers", "BatchEncoding") in of_library else "mapping"
    if issubclass(kind, tuple):
        return "named tuple" if hasattr(kind, "_make") else "tuple"
    return "dataclass" if dataclasses.is_dataclass(kind) else None


def _set_fields(value: object) -> list[str]:
    fields = dataclasses.fields(cast("Any", value))
    return [field.name for field in fields if hasattr(value, field.name)]
