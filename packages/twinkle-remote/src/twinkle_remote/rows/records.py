"""Records: mappings, dataclasses and tuples, whose rows are those of their parts; and records of other parts."""

from __future__ import annotations

import copy
import dataclasses
from collections import UserDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from twinkle_remote.errors import DispatchError
from twinkle_remote.protocol.call import is_component_type
from twinkle_remote.rows.row_types import sequence_like
from twinkle_remote.rows.unknown import is_tensor_collection, refuse_attributes

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")
_Form = Literal["mapping", "encoding", "named tuple", "tuple", "dataclass"]
_forms: dict[type, _Form | None] = {}
_ENCODINGS = "encodings of the tokenizer"


def parts_of(value: object) -> Mapping[Any, object] | None:
    """The parts of a mapping, dataclass or tuple, by name or place; None for everything else.

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
        return {key: one[key] for key in one.keys()}  # noqa: SIM118  its iterator may give rows
    if form == "tuple":
        return dict(enumerate(one))
    if form == "named tuple":
        return dict(zip(_names(type(value)), tuple.__iter__(one), strict=True))
    if form == "encoding":
        return one.data if one.encodings is None else {**one.data, _ENCODINGS: one.encodings}
    return {name: getattr(value, name) for name in _set_fields(value)}


def rebuild(value: T, parts: Sequence[object]) -> T:
    """A record of other rows, of parts in the order of `parts_of`.

    A dataclass is made by its constructor: a share, or a joined value, computes by itself what is made of the fields.

    Raises:
        DispatchError: It cannot be made again, or has attributes of its own.
    """
    form = _form_of(type(value))
    if form in ("mapping", "encoding"):
        made: T = with_items(value, dict(zip(cast("Any", parts_of(value)), parts, strict=True)))
        return made
    if form == "dataclass":
        replaced: T = _replaced(value, parts)
        return replaced
    refuse_attributes(value)
    return cast("T", sequence_like(value, parts) if form == "tuple" else _named_tuple(value, parts))


def with_parts(value: T, parts: Sequence[object]) -> T:
    """A copy of a record with the same rows in another form; all attributes stay, and no constructor runs.

    Raises:
        DispatchError: It is a mapping that cannot be made again.
    """
    form = _form_of(type(value))
    if form in ("mapping", "encoding"):
        return with_items(value, dict(zip(cast("Any", parts_of(value)), parts, strict=True)), whole=True)
    own = dict(getattr(value, "__dict__", {}))
    if form == "tuple":
        return cast("T", sequence_like(value, parts, own))
    twin: Any = _named_tuple(value, parts) if form == "named tuple" else copy.copy(value)
    names = _set_fields(value) if form == "dataclass" else ()
    for name, part in {**own, **dict(zip(names, parts, strict=False))}.items():
        object.__setattr__(twin, name, part)  # also of a frozen one
    return cast("T", twin)


def with_items(value: T, items: dict[Any, object], *, whole: bool = False) -> T:
    """A mapping of the type of `value` with other items.

    Args:
        value: The mapping; never mutated. A dict is copied, and one of another type made of its items.
        items: The items.
        whole: They are of the same rows, so that a dict's attributes stay.

    Raises:
        DispatchError: Its type cannot be made again, or it is a dict with attributes of its own.
    """
    kind: Any = type(value)
    if kind is dict:
        return cast("T", items)
    if _form_of(kind) == "encoding":
        data = dict(items)
        return cast("T", kind(data, encoding=data.pop(_ENCODINGS, None), n_sequences=cast("Any", value).n_sequences))
    copied = issubclass(kind, dict | UserDict)
    if copied and not whole:
        refuse_attributes(value, {"data", *items} if issubclass(kind, UserDict) else items)
    try:
        twin: Any = _copied(value, items) if copied else kind(items)
        wrong = list(twin.keys()) != list(items) or any(twin[key] is not items[key] for key in items)
    except Exception as error:  # the user's type may raise anything
        raise _not_again(kind, f"{type(error).__name__}: {error}") from error
    if wrong:
        raise _not_again(kind, f"of {list(items)} it keeps {list(twin.keys())}, or other values")
    return cast("T", twin)


def _copied(value: Any, items: dict[Any, object]) -> Any:
    twin = copy.copy(value)
    if twin is value:
        raise TypeError("its copy is the object itself")
    if not items.keys() >= set(twin.keys()):
        twin.clear()
        twin.update(items)
    for key, part in items.items():
        twin[key] = part
    return twin


def _named_tuple(value: Any, parts: Sequence[object]) -> Any:
    kind = type(value)
    return kind._make(parts) if hasattr(kind, "_make") else kind(parts)


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


def is_named(kind: type) -> bool:
    """Whether a type is one of named tuples, also of those that C code defines."""
    return _form_of(kind) == "named tuple"


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
    library = {(base.__module__.partition(".")[0], base.__name__) for base in kind.__mro__}
    if is_component_type(kind) or is_tensor_collection(kind) or ("torch", "PackedSequence") in library:
        return None  # a PackedSequence holds steps of time
    if issubclass(kind, Mapping):
        return "encoding" if ("transformers", "BatchEncoding") in library else "mapping"
    if issubclass(kind, tuple):
        return "named tuple" if _names(kind) else "tuple"
    return "dataclass" if dataclasses.is_dataclass(kind) else None


def _names(kind: type) -> tuple[str, ...]:
    """The names of a tuple's parts; of those that C code defines (torch.max, os.stat), the ones that are parts."""
    own = getattr(kind, "_fields", None)
    count = getattr(kind, "n_sequence_fields", None)
    if own is None and isinstance(count, int):
        own = cast("Any", kind).__match_args__
        return (*own, *(f"[{place}]" for place in range(len(own), count)))
    return tuple(own or ())


def _set_fields(value: object) -> list[str]:
    fields = dataclasses.fields(cast("Any", value))
    return [field.name for field in fields if hasattr(value, field.name)]
