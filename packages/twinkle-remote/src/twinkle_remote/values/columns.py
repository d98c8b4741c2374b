"""Columns: the named parts of mappings, dataclasses and named tuples, and copies with other parts."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections import UserDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from twinkle_remote.errors import DispatchError
from twinkle_remote.protocol.component import is_component_type
from twinkle_remote.values.attributes import attributes_of, carried, is_cache, set_attributes, twin_of

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")
_Form = Literal["mapping", "named tuple", "dataclass", "adapter"]
_forms: dict[type, _Form | None] = {}
_ADAPTERS = {("transformers", "BatchEncoding"): "transformers"}  # that have columns; those with rows are in `rows`


def columns(value: object) -> Mapping[Any, object] | None:
    """The named parts of a mapping, dataclass or named tuple; None for everything else."""
    form = _form_of(type(value))
    if form is None:
        return None
    if form == "mapping":
        return cast("Mapping[Any, object]", value) if type(value) is dict else _items(cast("Any", value))
    if form == "named tuple":
        return dict(zip(_names(type(value)), tuple.__iter__(cast("Any", value)), strict=True))
    if form == "adapter":
        return cast("Mapping[Any, object]", _adapter(type(value)).columns(value))
    return {name: getattr(value, name) for name in _set_fields(value)}


def _items(value: Any) -> Mapping[Any, object]:
    """The items of a mapping by its keys: iterating over it may give something else."""
    return {key: value[key] for key in value.keys()}  # noqa: SIM118  its iterator may give rows


def rebuild(value: T, parts: Sequence[object]) -> T:
    """A mapping, dataclass or named tuple of other rows, in the order that `columns` gave them.

    Values that were cached for the whole are left out: a share, or a joined value, computes them again.

    Raises:
        DispatchError: It is a mapping that cannot be made again, or has an attribute that may describe the whole.
    """
    if type(value) is dict:
        return cast("T", dict(zip(cast("Mapping[Any, object]", value), parts, strict=True)))
    form = _form_of(type(value))
    if form == "named tuple":
        return cast("T", _named_tuple(value, parts, carried(value) if hasattr(value, "__dict__") else {}))
    if form in ("mapping", "adapter"):
        return with_items(value, dict(zip(cast("Any", columns(value)), parts, strict=True)))
    return _fresh_dataclass(value, parts)


def with_parts(value: T, parts: Sequence[object]) -> T:
    """A copy of a mapping, dataclass or named tuple with the same rows in another form; all attributes stay.

    Raises:
        DispatchError: It is a mapping that cannot be made again.
    """
    if type(value) is dict:
        return cast("T", dict(zip(cast("Mapping[Any, object]", value), parts, strict=True)))
    form = _form_of(type(value))
    if form == "named tuple":
        return cast("T", _named_tuple(value, parts, dict(getattr(value, "__dict__", {}))))
    if form in ("mapping", "adapter"):
        return with_items(value, dict(zip(cast("Any", columns(value)), parts, strict=True)), whole=True)
    twin = twin_of(value)
    set_attributes(twin, dict(zip(_set_fields(value), parts, strict=True)))
    return twin


def _named_tuple(value: Any, parts: Sequence[object], attributes: dict[str, object]) -> Any:
    kind = type(value)
    twin = kind._make(parts) if hasattr(kind, "_make") else kind(parts)
    set_attributes(twin, attributes)
    return twin


def _fresh_dataclass(value: T, parts: Sequence[object]) -> T:
    names = _set_fields(value)
    kept = carried(value, names, constants=False)
    derived = {field.name: field.default for field in dataclasses.fields(cast("Any", value)) if not field.init}
    for name, part in zip(names, parts, strict=True):
        if name in derived and part is not None and part is getattr(value, name) and part is not derived[name]:
            raise DispatchError(
                f"a {type(value).__name__} has a field {name}={part!r:.60} that is made, not given (init=False), and "
                "whether it is true of a part of the rows is not known: make it a cached_property, pass "
                "Replicate(value) to send it whole, or teach the type with register_splitter("
                f"{type(value).__name__}, splitter)"
            )
    twin = twin_of(value)
    for name, _ in list(attributes_of(twin)):
        if name not in names and name not in kept:
            object.__delattr__(twin, name)
    set_attributes(twin, dict(zip(names, parts, strict=True)))
    return twin


def with_items(value: T, items: dict[Any, object], *, whole: bool = False) -> T:
    """A mapping of the type of `value`, with its attributes, and other items; it has at least the keys of `value`.

    Args:
        value: The mapping; never mutated.
        items: The items.
        whole: They are the same rows in another form, so that all attributes stay.

    Raises:
        DispatchError: Its type cannot be made again, or it has an attribute that may describe the whole.
    """
    kind = type(value)
    if kind is dict:
        return cast("T", items)
    if _form_of(kind) == "adapter":
        return cast("T", _adapter(kind).with_items(value, items))
    try:
        twin = _filled(value, items) if issubclass(kind, dict | UserDict) else _constructed(value, items, whole=whole)
        wrong = [key for key in items if twin[key] is not items[key]]
    except DispatchError:
        raise
    except Exception as error:  # the user's type may raise anything
        raise _not_again(kind, f"{type(error).__name__}: {error}") from error
    if wrong or len(twin.keys()) != len(items):
        raise _not_again(kind, f"of {list(items)} it keeps other values for {wrong}")
    if not whole and issubclass(kind, dict | UserDict):
        _without_caches(value, twin, items)
    return cast("T", twin)


def with_only(value: T, names: Sequence[Any]) -> T:
    """A mapping of the type of `value` with these of its items only, in this order.

    Raises:
        DispatchError: Its type cannot be made again.
    """
    kind, parts = type(value), cast("Mapping[Any, object]", columns(value))
    items = {name: parts[name] for name in names}
    if kind is dict:
        return cast("T", items)
    try:
        if issubclass(kind, dict | UserDict):
            twin: Any = twin_of(value)
            twin.clear()
            twin.update(items)
        else:
            twin = cast("Any", kind)(items)
    except Exception as error:  # the user's type may raise anything
        raise _not_again(kind, f"{type(error).__name__}: {error}") from error
    if list(twin.keys()) != list(items) or any(twin[name] is not items[name] for name in items):
        raise _not_again(kind, f"of {list(items)} it keeps {list(twin.keys())}")
    return cast("T", twin)


def _filled(value: Any, items: dict[Any, object]) -> Any:
    twin = twin_of(value)
    for key, part in items.items():
        twin[key] = part
    return twin


def _without_caches(value: Any, twin: Any, items: Mapping[Any, object]) -> None:
    """Take what a dict's twin has from `value` off it, unless it is true of other rows too."""
    before = dict(attributes_of(value))
    changed = {name for name, own in attributes_of(twin) if own is not before.get(name, twin)}
    changed.update(name for name, own in before.items() if name in items and items[name] is own)
    kept = carried(value, changed)
    for name in before:
        if name not in changed and name not in kept and is_cache(type(value), name):
            twin.__dict__.pop(name, None)


def _constructed(value: Any, items: dict[Any, object], *, whole: bool) -> Any:
    """An object of the type with the items, and with the attributes that do not depend on the items."""
    kind = type(value)
    twin, same = kind(items), kind(dict(_items(value)))
    made = dict(attributes_of(same))
    unchanged = {name for name, own in attributes_of(value) if name in made and _unchanged(own, made[name])}
    if whole:
        set_attributes(twin, {name: own for name, own in attributes_of(value) if name not in unchanged})
    else:
        set_attributes(twin, carried(value, unchanged))
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


def is_tensor_collection(kind: type) -> bool:
    """Whether a type is TensorDict or a tensorclass: their rows are those of their batch size, not those of columns."""
    library: Any = sys.modules.get("tensordict")
    return library is not None and (issubclass(kind, library.TensorDictBase) or library.is_tensorclass(kind))


def is_by_time(kind: type) -> bool:
    """Whether a type is torch's PackedSequence, whose parts hold steps of time, not rows."""
    return kind.__name__ == "PackedSequence" and kind.__module__.partition(".")[0] == "torch"


def is_named(kind: type) -> bool:
    """Whether a type is one of named tuples, also of those that C code defines."""
    return _form_of(kind) == "named tuple"


def is_mapping(value: object) -> bool:
    """Whether the parts of a value are those of a dict, which may differ from one value to the next."""
    return _form_of(type(value)) in ("mapping", "adapter")


def part_path(path: str, value: object, key: object) -> str:
    """The path of a named part of a value."""
    return f"{path}[{key!r}]" if is_mapping(value) else f"{path}.{key}"


def _form_of(kind: type) -> _Form | None:
    try:
        return _forms[kind]
    except KeyError:
        return _forms.setdefault(kind, _find_form(kind))


def _find_form(kind: type) -> _Form | None:
    if is_component_type(kind) or is_tensor_collection(kind) or is_by_time(kind):
        return None
    if issubclass(kind, Mapping):
        return "mapping" if _adapter_name(kind) is None else "adapter"
    if issubclass(kind, tuple) and _names(kind):
        return "named tuple"
    return "dataclass" if dataclasses.is_dataclass(kind) else None


def _names(kind: type) -> tuple[str, ...]:
    """The names of a tuple's parts; of those that C code defines (torch.max, os.stat), the ones that are parts."""
    own = getattr(kind, "_fields", None)
    count = getattr(kind, "n_sequence_fields", None)
    if own is None and isinstance(count, int):
        own = cast("Any", kind).__match_args__
        return (*own, *(f"[{place}]" for place in range(len(own), count)))
    return tuple(own or ())


def _adapter_name(kind: type) -> str | None:
    found = (_ADAPTERS.get((base.__module__.partition(".")[0], base.__name__)) for base in kind.__mro__)
    return next(filter(None, found), None)


def _adapter(kind: type) -> Any:
    return importlib.import_module(f"twinkle_remote.values.adapters.{_adapter_name(kind)}")


def _set_fields(value: object) -> list[str]:
    fields = dataclasses.fields(cast("Any", value))
    return [field.name for field in fields if hasattr(value, field.name)]


def is_numbered(value: object) -> bool:
    """Whether a value, or a part of it, is a frame or series with a default index from 0."""
    pandas = sys.modules.get("pandas")
    if pandas is None:
        return False
    if isinstance(value, pandas.DataFrame | pandas.Series):
        index = value.index
        return isinstance(index, pandas.RangeIndex) and index.start == 0 and index.step == 1
    parts = columns(value)
    return parts is not None and any(map(is_numbered, parts.values()))


def renumbered(value: T) -> T:
    """A value whose frames and series, also in its columns, bear numbers from 0 in the order of their rows."""
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(value, pandas.DataFrame | pandas.Series):
        return cast("T", value.reset_index(drop=True))
    parts = columns(value)
    return value if parts is None else rebuild(value, [renumbered(part) for part in parts.values()])


def labelled(value: T) -> T:
    """A value whose frames and series, also in its columns, bear labels of their own in place of a range of numbers."""
    pandas = sys.modules.get("pandas")
    if pandas is None:
        return value
    if isinstance(value, pandas.DataFrame | pandas.Series):
        index = value.index
        if not isinstance(index, pandas.RangeIndex):
            return value
        return cast("T", value.set_axis(pandas.Index(index.to_numpy(), name=index.name)))
    parts = columns(value)
    if parts is None:
        return value
    fresh = [labelled(part) for part in parts.values()]
    return (
        value if all(new is old for new, old in zip(fresh, parts.values(), strict=True)) else with_parts(value, fresh)
    )
