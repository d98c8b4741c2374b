"""The source of a stub: classes with the signatures that a server describes.

The server is not trusted: each name must be a plain name, each type must name safe types, and each default must be a
literal. So a stub defines classes and does nothing else, whatever a server says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from twinkle_http.client.connection import Connection
from twinkle_http.stub.described import OPTIONS, Description
from twinkle_http.stub.safe_types import ABCS, RESERVED, is_name, safe_literal, safe_type, type_arguments
from twinkle_remote.backends.serving import GROUP, INSTANCE, MESH
from twinkle_remote.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from twinkle_http.stub.described import (
        DescribedClass,
        DescribedMethod,
        DescribedParameter,
        DescribedType,
    )

_SPECIAL = ("__iter__", "__next__", "__len__", "__enter__", "__exit__")
_PLACEMENT = {GROUP: "str | None", MESH: "DeviceMesh | None", INSTANCE: "str | None"}
_ENUMS = ("Enum", "IntEnum", "StrEnum", "Flag", "IntFlag")
_FOR_FUNCTIONS = {"dispatch": "all", "collect": "first", "weight": None, "balance": None}
_HEAD = """
from __future__ import annotations

{modules}
from collections.abc import {abcs}
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

import twinkle_remote as twinkle
from twinkle_mesh import DeviceMesh
{libraries}
_default: Any = None  # a default that the server knows


def _at_server() -> NoReturn:
    raise twinkle.NotInitializedError(
        "this class runs at its server: build it with remote_group=..., in a session of initialize('http', ...)"
    )
"""


def stub_of(address: str, token: str, *, tls: str | None = None, insecure: bool = False) -> str:
    """The source of a stub of the classes that a server serves: what `twinkle_remote.stub_of` calls."""
    connection = Connection(address, token, tls=tls, insecure=insecure, patience=10.0)
    return source(connection.json("/classes"), address)


def source(description: bytes, address: str) -> str:
    """The source of a stub.

    Args:
        description: A server's description of its classes, as JSON.
        address: Its URL.

    Raises:
        BackendError: The description is not valid, or not safe.
    """
    try:
        found = msgspec.json.decode(description, type=Description)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise BackendError(f"{address} describes its classes in a way that is not known here: {error}") from None
    titles = [*(kind.title for kind in found.types), *(cls.title for cls in found.classes)]
    for title in titles:
        if titles.count(title) > 1 or title in RESERVED or title.startswith("_"):
            raise BackendError(f"{address} describes two classes, or a reserved one, by the name {title[:80]!r}")
        _name(title)
    lines: list[str] = []
    for kind in sorted(found.types, key=lambda kind: kind.kind not in _ENUMS):  # their members are defaults of others
        lines += ["", "", *_type_lines(kind, titles)]
    for cls in found.classes:
        lines += ["", "", *_class_lines(cls, titles)]
    body = "\n".join(lines)
    return f"{_head(address, body)}{body}\n"


def _head(address: str, body: str) -> str:
    modules = [f"import {name}" for name in ("datetime", "decimal", "enum", "fractions", "uuid") if f"{name}." in body]
    used = [f"    import {name}" for name in ("numpy", "torch") if f"{name}." in body]
    libraries = "\n".join(["", "if TYPE_CHECKING:", *used, ""]) if used else ""
    title = f'"""What {ascii(address)[1:-1]} serves, made by `twinkle stub`; the classes run there."""\n'
    return title + _HEAD.format(modules="\n".join(modules), abcs=", ".join(sorted(ABCS)), libraries=libraries)


def _name(text: str) -> str:
    if not is_name(text):
        raise BackendError(f"the server describes something by the name {text[:80]!a}, which is no name in Python")
    return text


def _type(text: str, note: str, titles: Sequence[str]) -> tuple[str, str]:
    """A type, and a comment on what is not known of it."""
    found = safe_type(text, titles)
    if found is None:
        return "Any", f"  # {text[:80]!a}"
    return found, f"  # Any: {note[:80]!a}" if note else ""


def _type_lines(kind: DescribedType, titles: Sequence[str]) -> Iterator[str]:
    if kind.kind in _ENUMS:
        yield f"class {kind.title}(enum.{kind.kind}):"
        yield from _doc(kind.text)
        for name, value in kind.members:
            yield f"    {_name(name)} = {safe_literal(value) or repr(name)}"
    elif kind.kind in ("NamedTuple", "dataclass"):
        is_tuple = kind.kind == "NamedTuple"
        if not is_tuple:
            yield "@dataclass(frozen=True)" if kind.frozen else "@dataclass"
        yield f"class {kind.title}(NamedTuple):" if is_tuple else f"class {kind.title}:"
        yield from _doc(kind.text)
        required = max((i for i, one in enumerate(kind.fields) if _default(one[3], titles) is None), default=-1)
        for i, (name, text, note, default) in enumerate(kind.fields):
            shown, comment = _type(text, note, titles)
            given = _default(default, titles) if is_tuple else _field_default(default, titles)
            if given is not None and not (is_tuple and i < required):
                shown += f" = {given}"
            yield f"    {_name(name)}: {shown}{comment}"
    else:
        raise BackendError(f"the server describes {kind.title} as a {kind.kind[:40]!a}, which is not known here")
    yield ""
    yield ""
    yield f"twinkle.register_type({kind.title}, {kind.name!a})"


def _default(text: str | None, titles: Sequence[str]) -> str | None:
    """A default that is a literal, or a member of an enum."""
    if text is None:
        return None
    title, _, member = text.partition(".")
    return text if title in titles and is_name(member) and not member.startswith("_") else safe_literal(text)


def _field_default(text: str | None, titles: Sequence[str]) -> str | None:
    if text is None:
        return None
    if text in ("list()", "dict()", "set()"):
        return f"field(default_factory={text[:-2]})"
    found = _default(text, titles)
    return "field(kw_only=True)" if found is None else f"field(default={found})"


def _class_lines(cls: DescribedClass, titles: Sequence[str]) -> Iterator[str]:
    iterates = any(method.name == "__iter__" for method in cls.methods)
    options = ['execute="first"'] if cls.execute == "first" else []
    options += [f"prefetch={cls.prefetch}"] if iterates else []
    bases = [base for base in cls.bases if base in titles]
    yield f"@twinkle.remote_class({', '.join(options)})"
    yield f"class {cls.title}{f'({bases[0]})' if bases else ''}:"
    yield from _doc(cls.text)
    placement = [f"{name}: {_PLACEMENT[name]} = None" for name in cls.placement if name in _PLACEMENT]
    parameters, comments = _parameters(cls.parameters, titles, placement)
    plain, _ = _parameters(cls.parameters, titles, ())
    yield from (f"    {comment}" for comment in comments)
    yield "    if TYPE_CHECKING:"
    yield ""
    yield f"        def __init__({parameters}) -> None: ..."
    yield ""
    yield "    else:"
    yield ""
    yield f"        def __init__({plain}) -> None:"
    yield "            _at_server()"
    for method in cls.methods:
        yield ""
        yield from _method_lines(method, titles)
    yield ""
    yield ""
    yield f"twinkle.register_type({cls.title}, {cls.name!a})"


def _method_lines(method: DescribedMethod, titles: Sequence[str]) -> Iterator[str]:
    if method.name not in _SPECIAL and (not is_name(method.name) or method.name.startswith("_")):
        raise BackendError(f"the server describes a method {method.name[:80]!a}, which is no name of a remote function")
    returns, comment = _type(method.returns, method.note, titles)
    parameters, comments = _parameters(method.parameters, titles, ())
    if method.name == "__exit__":
        parameters = "self, kind: type[BaseException] | None, error: BaseException | None, trace: object"
        returns, comments = "bool | None", []
    generates = method.form in ("generator", "async generator")
    if generates:
        returns = _items(returns, "AsyncIterator" if method.form == "async generator" else "Iterator")
    yield from (f"    {one}" for one in comments)
    if method.property:
        yield "    @property"
    if method.options is not None:
        yield f"    @twinkle.remote_function({', '.join(_options(method))})"
    awaited = method.form in ("coroutine", "async generator")
    yield f"    {'async ' if awaited else ''}def {method.name}({parameters}) -> {returns}:{comment}"
    yield from (f"    {line}" for line in _doc(method.text))
    yield "        _at_server()"
    if generates:
        yield "        for item in ():"
        yield "            yield item"


def _items(returns: str, head: str) -> str:
    """The type of a generator by its items."""
    name, _, inside = returns.partition("[")
    if name not in ("Iterator", "Iterable", "Generator", "AsyncIterator", "AsyncIterable", "AsyncGenerator"):
        return f"{head}[Any]"
    if not inside:
        return f"{head}[Any]"
    return f"{head}[{type_arguments(returns)[0]}]"


def _options(method: DescribedMethod) -> Iterable[str]:
    for name, value in (method.options or {}).items():
        if name not in OPTIONS:
            raise BackendError(f"the server describes {method.name} with an option {name[:80]!a}, unknown here")
        given: Any = _FOR_FUNCTIONS.get(name, value) if value == "a function" else value
        if isinstance(given, list):
            given = tuple(map(str, given))
        if given is not None:
            yield f"{name}={_shown(given)}"


def _shown(value: str | float | bool | tuple[str, ...] | None) -> str:
    return ascii(value)


def _parameters(
    parameters: Sequence[DescribedParameter], titles: Sequence[str], placement: Sequence[str]
) -> tuple[str, list[str]]:
    """A list of parameters, and comments on what is not known of them."""
    shown = ["self"]
    comments = []
    by_keyword = False
    rest = ""
    for i, one in enumerate(parameters):
        kind, comment = _type(one.type, one.note, titles)
        if comment:
            comments.append(f"# {_name(one.name)}: {comment.lstrip(' #')}")
        default = "" if one.default is None else f" = {_default(one.default, titles) or '_default'}"
        text = f"{_name(one.name)}: {kind}"
        if one.kind == "VAR_KEYWORD":
            rest = f"**{text}"
            continue
        if one.kind == "VAR_POSITIONAL":
            shown.append(f"*{text}")
            by_keyword = True
            continue
        if one.kind == "KEYWORD_ONLY" and not by_keyword:
            shown.append("*")
            by_keyword = True
        shown.append(text + default)
        last = i + 1 == len(parameters) or parameters[i + 1].kind != "POSITIONAL_ONLY"
        if one.kind == "POSITIONAL_ONLY" and last:
            shown.append("/")
    if placement and not by_keyword:
        shown.append("*")
    return ", ".join([*shown, *placement, *([rest] if rest else [])]), comments


def _doc(text: str) -> Iterator[str]:
    if text:
        yield f"    {text!a}"
