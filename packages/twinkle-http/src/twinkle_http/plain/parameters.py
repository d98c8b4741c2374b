"""The parameters of a served function, as keywords of a JSON object."""

from __future__ import annotations

import inspect
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twinkle_http.annotations import annotations_of
from twinkle_http.plain.values import json_type, to_value
from twinkle_http.server.requests.body import RefusedError
from twinkle_remote.backends.serving import GROUP, INSTANCE, MESH, constructor_signature, unintercepted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_PLACEMENT = (GROUP, MESH, INSTANCE)
_PLACES = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)
_LONGEST = 500  # characters of what went wrong


@dataclass(frozen=True, slots=True)
class JsonParameter:
    """A parameter.

    Attributes:
        name: Its name.
        type: The type by which its JSON is read.
        required: It has no default.
        kind: By place, by keyword, or all others.
    """

    name: str
    type: Any
    required: bool
    kind: inspect._ParameterKind


class JsonParameters:
    """The parameters of a function.

    Args:
        name: Class.method, for messages.
        signature: Its signature, without `self`.
        annotations: The types of its parameters, and of its result.

    Attributes:
        name: As given.
        listed: The parameters with a name of their own.
        rest: The type of further keywords; None if it takes none.
        returns: The annotation of its result.
    """

    def __init__(self, name: str, signature: inspect.Signature, annotations: Mapping[str, Any]) -> None:
        self.name = name
        self.listed: list[JsonParameter] = []
        self.rest: JsonParameter | None = None
        self.returns = json_type(annotations.get("return", Any))
        for one in signature.parameters.values():
            kind = json_type(annotations.get(one.name, Any))
            if one.kind is one.VAR_POSITIONAL:
                kind = types.GenericAlias(list, kind)
            required = one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
            found = JsonParameter(one.name, kind, required, one.kind)
            if one.kind is one.VAR_KEYWORD:
                self.rest = found
            else:
                self.listed.append(found)

    def bind(
        self, given: Mapping[str, Any], component: Callable[[str], Any]
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """The positional and keyword arguments of a JSON object.

        Args:
            given: The object.
            component: The component of an id.

        Raises:
            RefusedError: A parameter is missing, unknown, or of another type.
        """
        names = [one.name for one in self.listed]
        unknown = [] if self.rest is not None else [key for key in given if key not in names]
        missing = [one.name for one in self.listed if one.required and one.name not in given]
        if unknown or missing:
            wrong = f"it does not take {unknown[0][:80]!a}" if unknown else f"{missing[0]!r} is missing"
            raise _invalid(f"{self.name}({', '.join(names)}): {wrong}")
        places = [one for one in self.listed if one.kind in _PLACES]
        by_place = any(one.kind is inspect.Parameter.VAR_POSITIONAL and given.get(one.name) for one in places)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        left_out = ""
        for one in self.listed:
            if one.name not in given:
                left_out = left_out or one.name
                continue
            value = self._value(one, given[one.name], component)
            if one not in places or (one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and not by_place):
                kwargs[one.name] = value
            elif left_out:
                raise _invalid(f"{self.name}: {one.name!r} goes by place, and {left_out!r} before it is missing")
            elif one.kind is inspect.Parameter.VAR_POSITIONAL:
                args.extend(value)
            else:
                args.append(value)
        for key in given:
            if key not in names and self.rest is not None:
                kwargs[key] = self._value(self.rest, given[key], component)
        return args, kwargs

    def _value(self, one: JsonParameter, value: Any, component: Callable[[str], Any]) -> Any:
        try:
            return to_value(value, one.type, component)
        except RefusedError:
            raise
        except Exception as error:  # a dataclass may refuse its fields with any error
            why = str(error) or type(error).__name__
            raise _invalid(f"{self.name}: {one.name}: {why[:_LONGEST]}") from None


def method_parameters(name: str, function: Callable[..., Any] | None) -> JsonParameters:
    """The parameters of a method.

    Args:
        name: Class.method.
        function: The method; None for one without parameters.
    """
    if function is None:
        return JsonParameters(name, inspect.Signature(), {})
    signature = inspect.signature(function)
    return JsonParameters(name, _without_self(signature), annotations_of(function))


def constructor_parameters(cls: Any) -> JsonParameters:
    """The parameters of a constructor, without those of placement."""
    signature = constructor_signature(cls) or inspect.Signature()
    own = [one for one in signature.parameters.values() if one.name not in _PLACEMENT]
    return JsonParameters(cls.__name__, signature.replace(parameters=own), constructor_annotations(cls))


def constructor_annotations(cls: Any) -> dict[str, Any]:
    """The annotations of a constructor, and of those that it passes keywords on to."""
    annotations: dict[str, Any] = {}
    for base in reversed(cls.__mro__[:-1]):
        for name in ("__new__", "__init__"):
            found = vars(base).get(name)
            function = getattr(found, "__func__", found)
            if inspect.isroutine(function):
                annotations.update(annotations_of(unintercepted(function)))
    annotations.pop("return", None)
    return annotations


def _without_self(signature: inspect.Signature) -> inspect.Signature:
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _invalid(why: str) -> RefusedError:
    return RefusedError(400, why, "InvalidArguments")
