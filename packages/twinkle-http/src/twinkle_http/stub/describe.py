"""The description of a server's classes: names, signatures and options as text, and the types of their values."""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
from typing import TYPE_CHECKING, Any

from twinkle_http.annotations import annotations_of, fields_of
from twinkle_http.plain.parameters import constructor_annotations
from twinkle_http.registered import vars_of
from twinkle_http.stub.described import (
    OPTIONS,
    DescribedClass,
    DescribedMethod,
    DescribedParameter,
    DescribedType,
    Description,
)
from twinkle_http.stub.safe_types import RESERVED
from twinkle_http.stub.type_text import TypeText
from twinkle_remote.backends.serving import GROUP, INSTANCE, MESH, constructor_signature
from twinkle_remote.protocol import FunctionSpec, execute_of, is_component_type, options_under, prefetch_of
from twinkle_remote.values import TYPES, is_named_tuple, travels_by_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from twinkle_http.plain.catalogue import Catalogue, ServedClass

_PLACEMENT = (GROUP, MESH, INSTANCE)
_ENUMS = (enum.IntFlag, enum.Flag, enum.StrEnum, enum.IntEnum, enum.Enum)
_LONGEST_TEXT = 2000


def describe(catalogue: Catalogue) -> Description:
    """The description.

    Args:
        catalogue: The served classes.
    """
    served = catalogue.all()
    known = TYPES.known().items()
    kinds = {name: kind for name, kind in known if travels_by_name(kind) and not is_component_type(kind)}
    titles = _titles([*((one.cls, one.name) for one in served), *((kind, name) for name, kind in kinds.items())])
    text = TypeText(titles)
    return Description(
        [_class(one, titles, text) for one in sorted(served, key=lambda one: len(one.cls.__mro__))],
        [_type(kind, name, titles[kind], text) for name, kind in kinds.items()],
    )


def _titles(named: Iterable[tuple[type, str]]) -> dict[type, str]:
    """A name of its own for each class."""
    titles: dict[type, str] = {}
    for kind, _ in named:
        title, count = kind.__name__, 1
        while kind not in titles and (title in titles.values() or title in RESERVED):
            count += 1
            title = f"{kind.__name__}{count}"
        titles.setdefault(kind, title)
    return titles


def _class(served: ServedClass, titles: Mapping[type, str], text: TypeText) -> DescribedClass:
    cls = served.cls
    signature = constructor_signature(cls) or inspect.Signature()
    bases = [titles[base] for base in cls.__mro__[1:] if base in titles and is_component_type(base)]
    return DescribedClass(
        name=served.name,
        title=titles[cls],
        text=_doc(cls),
        bases=bases[:1],
        execute=execute_of(cls),
        prefetch=prefetch_of(cls),
        parameters=_parameters(signature, constructor_annotations(cls), text),
        placement=[name for name in _PLACEMENT if name not in signature.parameters],
        methods=[_method(cls, name, text) for name in served.methods],
    )


def _method(cls: type, name: str, text: TypeText) -> DescribedMethod:
    found = vars_of(cls, name)
    function: Any = found.fget if isinstance(found, property) else found
    spec = options_under(cls, name)
    signature = inspect.signature(function) if inspect.isroutine(function) else inspect.Signature()
    own = list(signature.parameters.values())[1:]
    annotations = annotations_of(function)
    returned, note = text.text(annotations.get("return", Any))
    return DescribedMethod(
        name=name,
        text=_doc(function),
        property=isinstance(found, property),
        form="plain" if spec is None else spec.form,
        options=None if spec is None else _options(spec),
        parameters=_parameters(signature.replace(parameters=own), annotations, text),
        returns=returned,
        note=note,
    )


def _options(spec: FunctionSpec) -> dict[str, Any]:
    """The options that differ from the defaults; a function of the server's stands as "a function"."""
    usual = FunctionSpec()
    found: dict[str, Any] = {}
    for name in OPTIONS:
        value = getattr(spec, name)
        if value != getattr(usual, name):
            found[name] = "a function" if callable(value) else list(value) if isinstance(value, tuple) else value
    return found


def _parameters(
    signature: inspect.Signature, annotations: Mapping[str, Any], text: TypeText
) -> list[DescribedParameter]:
    found = []
    for one in signature.parameters.values():
        kind, note = text.text(annotations.get(one.name, Any))
        default = None if one.default is one.empty else _default(one.default, text)
        found.append(DescribedParameter(one.name, kind, note, one.kind.name, default))
    return found


def _type(kind: Any, name: str, title: str, text: TypeText) -> DescribedType:
    about = DescribedType(name, title, _doc(kind), "dataclass")
    if issubclass(kind, enum.Enum):
        base = next(base for base in _ENUMS if issubclass(kind, base))
        about.members = [(member.name, _literal(member.value) or repr(member.name)) for member in kind]
        about.kind = base.__name__
        return about
    hints = fields_of(kind)
    if is_named_tuple(kind):
        defaults = {key: _default(value, text) for key, value in kind._field_defaults.items()}
        about.fields = [(key, *text.text(hints.get(key, Any)), defaults.get(key)) for key in kind._fields]
        about.kind = "NamedTuple"
        return about
    listed = dataclasses.fields(kind)
    about.fields = [(one.name, *text.text(hints.get(one.name, Any)), _field_default(one, text)) for one in listed]
    about.frozen = bool(kind.__dataclass_params__.frozen)
    return about


def _default(value: object, text: TypeText) -> str:
    """A default as text: a literal, or a member of an enum; "..." for others."""
    if isinstance(value, enum.Enum) and text.title(type(value)) and value.name in type(value).__members__:
        return f"{text.title(type(value))}.{value.name}"
    return _literal(value) or "..."


def _field_default(field: dataclasses.Field[Any], text: TypeText) -> str | None:
    if field.default is not dataclasses.MISSING:
        return _default(field.default, text)
    factory: Callable[[], Any] | Any = field.default_factory
    if factory is dataclasses.MISSING:
        return None
    return f"{factory.__name__}()" if factory in (list, dict, set) else "..."


def _literal(value: object) -> str:
    try:
        shown = repr(value)
        same = len(shown) <= _LONGEST_TEXT and ast.literal_eval(shown) == value
    except Exception:  # repr and == of a user's value may raise anything
        return ""
    return shown if same else ""


def _doc(value: Any) -> str:
    """The first paragraph of a class's or function's own documentation."""
    text = vars(value).get("__doc__") if isinstance(value, type) else getattr(value, "__doc__", None)
    made = f"{getattr(value, '__name__', '')}("  # what dataclass and NamedTuple write themselves
    if not isinstance(text, str) or text.startswith(made):
        return ""
    return inspect.cleandoc(text).partition("\n\n")[0][:_LONGEST_TEXT]
