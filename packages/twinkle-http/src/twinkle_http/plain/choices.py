"""Types that JSON alone does not tell apart, such as unions of two dataclasses: the members are tried one by one."""

from __future__ import annotations

import enum
import types
import typing
from typing import TYPE_CHECKING, Any

import msgspec

from twinkle_remote.protocol import is_component_type

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_UNIONS = (typing.Union, types.UnionType)


class _Anything(type):
    """The type of classes that any value is an instance of, as msgspec checks what was made."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True


class Choice(metaclass=_Anything):
    """The base of classes that stand for such a type.

    Attributes:
        members: The types of which JSON may be one; None for an enum and for a type that JSON does not express.
        of: The type.
    """

    members: Sequence[Any] | None
    of: Any


def stand_in(annotation: Any, json_type: Callable[[Any], Any]) -> Any:
    """A type by which JSON of an annotation can be read, though msgspec does not read it; Any where there is none.

    Args:
        annotation: The annotation.
        json_type: The same for a part of it.
    """
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in _UNIONS:
        members = [json_type(one) for one in args]
        return Any if Any in members else _choice(annotation, members)
    if origin is typing.Annotated:
        return json_type(args[0])
    if isinstance(origin, type) and args:
        inner = tuple(one if one is ... else json_type(one) for one in args)
        found = annotation if inner == args else json_type(types.GenericAlias(origin, inner))
        return _choice(annotation, None) if found is annotation or isinstance(found, _Anything) else found
    return _choice(annotation, None) if isinstance(annotation, type) else Any


def has_own_keys(annotation: Any) -> bool:
    """Whether a type has mappings with keys of a class of users, which msgspec would leave as the texts that JSON has.

    Args:
        annotation: A type that msgspec knows.
    """
    level: list[Any] = [msgspec.inspect.type_info(annotation)]
    seen: set[int] = set()
    while level:
        node = level.pop()
        if isinstance(node, tuple):
            level += node
        elif isinstance(node, msgspec.Struct) and id(node) not in seen:
            seen.add(id(node))
            if isinstance(node, msgspec.inspect.DictType) and isinstance(node.key_type, msgspec.inspect.CustomType):
                return True
            level += msgspec.structs.astuple(node)
    return False


def _choice(annotation: Any, members: Sequence[Any] | None) -> type:
    return _Anything(name_of(annotation), (Choice,), {"members": members, "of": annotation})


def name_of(kind: Any) -> str:
    """The name of a type, for errors and schemas."""
    plain = isinstance(kind, type) and not typing.get_args(kind)
    if plain and issubclass(kind, Choice):
        return name_of(kind.of)
    return str(kind.__name__) if plain else str(kind).replace("typing.", "")


def chosen(wanted: type[Choice], given: Any, read: Callable[[Any, Any], Any]) -> Any:
    """The value that JSON stands for: of the only member that takes it, or the JSON itself where a member is that.

    Args:
        wanted: The type.
        given: Plain values, as JSON has them.
        read: Reads a value as a type.

    Raises:
        TypeError: No member takes it, or several make different values of it.
    """
    if wanted.members is None:
        return _enum_member(wanted.of, given)
    fits: list[tuple[Any, Any]] = []
    refusals: list[str] = []
    for member in wanted.members:
        try:
            fits.append((member, read(member, given)))
        except Exception as error:  # a dataclass may refuse its fields with any error
            refusals.append(f"{name_of(member)}: {error}")
    if not fits:
        raise TypeError(f"Expected `{name_of(wanted)}`: {'; '.join(refusals)}")
    plain = [made for member, made in fits if is_component_type(member) or _unchanged(made, given)]
    plain = plain or [made for _, made in fits if _unchanged(made, given, as_floats=True)]
    if plain or len(fits) == 1:
        return plain[0] if plain else fits[0][1]
    shown = " and ".join(name_of(member) for member, _ in fits)
    raise TypeError(f"it may be {shown}, which JSON does not tell apart: annotate one of them")


def _enum_member(kind: Any, given: Any) -> Any:
    if not (isinstance(kind, type) and issubclass(kind, enum.Enum)):
        raise TypeError(f"JSON does not express a {name_of(kind)}")
    for member in kind:
        if _unchanged(member.value, given):
            return member
    raise TypeError(f"Invalid enum value {given!r:.80}; use one of {', '.join(repr(one.value) for one in kind)}")


def _unchanged(made: Any, given: Any, *, as_floats: bool = False) -> bool:
    """Whether a value is what JSON has, with the same types of elements; `as_floats`: floats may stand for integers."""
    if type(made) is not type(given):
        return as_floats and type(made) is float and type(given) is int
    if isinstance(given, list):
        pairs = zip(made, given, strict=False)
        return len(made) == len(given) and all(_unchanged(*pair, as_floats=as_floats) for pair in pairs)
    if isinstance(given, dict):
        pairs = zip(made.values(), given.values(), strict=False)
        return list(made) == list(given) and all(_unchanged(*pair, as_floats=as_floats) for pair in pairs)
    return bool(made == given)
