"""From a value to a message: plain values go into the tree, others become nodes, arrays become raw buffers."""

from __future__ import annotations

import dataclasses
import enum
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from twinkle_http.wire.arrays import array_parts, tensor_parts
from twinkle_http.wire.dataclass_fields import check_built
from twinkle_http.wire.errors import WireTypeError
from twinkle_http.wire.frame import Tree, frame
from twinkle_http.wire.limits import Limits
from twinkle_http.wire.scalars import to_text
from twinkle_remote.values import is_named_tuple, travels_by_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinkle_http.wire.envelopes import CallRequest
    from twinkle_http.wire.frame import WireMessage
    from twinkle_remote.values import TypeNames

    TagOf = Callable[[Any, Callable[[Any], Any]], list[Any] | None]

NODE = 1  # code of the MessagePack extension whose data is the index of a node
CONTAINERS = frozenset({"tuple", "set", "frozenset", "dict", "range", "slice", "enum", "named", "data", "made"})
_INLINE_BYTES = 1024
_PLAIN = frozenset({type(None), bool, float, str})
_DEPTH = Limits().depth  # that the other side reads


def encode(
    value: Any,
    types: TypeNames,
    *,
    what: str = "the value",
    named: TagOf = lambda value, part: None,
) -> WireMessage:
    """A message that stands for a value.

    Args:
        value: Any value of the wire's types, at any depth.
        types: Classes that travel by name.
        what: Name of the value, for errors.
        named: A node for a value that travels as a name, such as a lazy result; None for other values. It is called
            with the value and with a function that encodes a part of the value.

    Raises:
        WireTypeError: It holds a value of a type that cannot be sent; the message names the type and the place.
    """
    encoder = _Encoder(types, named)
    return _framed(encoder.part(value, what, 0), encoder, what)


def encode_request(request: CallRequest, types: TypeNames, *, what: str, named: TagOf) -> WireMessage:
    """The message of a call's request, whose arguments and mesh are values; see `encode`."""
    encoder = _Encoder(types, named)
    if not (request.args or request.kwargs or request.mesh is not None):
        return _framed(request, encoder, what)
    request.args = encoder.part(request.args, f"{what}['args']", 0)
    request.kwargs = encoder.part(request.kwargs, f"{what}['kwargs']", 0)
    request.mesh = None if request.mesh is None else encoder.part(request.mesh, f"{what}['mesh']", 0)
    return _framed(request, encoder, what)


def _framed(root: Any, encoder: _Encoder, what: str) -> WireMessage:
    tree = Tree(root, encoder.nodes, [view.nbytes for view in encoder.buffers])
    try:
        return frame(tree, encoder.buffers)
    except UnicodeEncodeError as error:
        raise WireTypeError(f"{what} holds text with lone surrogates, which is no Unicode: {error.reason}") from None


class _Encoder:
    def __init__(self, types: TypeNames, named: TagOf) -> None:
        self.nodes: list[list[Any]] = []
        self.buffers: list[memoryview] = []
        self._types = types
        self._named = named
        self._seen: dict[int, tuple[Any, msgspec.msgpack.Ext]] = {}

    def part(self, value: Any, where: str, depth: int) -> Any:
        """The node that stands for a value in the tree."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is int and -(1 << 63) <= value < 1 << 64:
            return value
        if depth > _DEPTH:
            raise WireTypeError(f"{where} is more than {_DEPTH} values deep, or contains itself")
        if kind is list:
            if _PLAIN.issuperset(map(type, value)):
                return value
            return [self.part(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
        if kind is dict and all(type(key) is str for key in value):
            return {key: self.part(item, f"{where}[{key!r}]", depth + 1) for key, item in value.items()}
        return self._extension(value, where, depth)

    def _extension(self, value: Any, where: str, depth: int) -> Any:
        """The node of a value; a leaf that occurs twice is sent once, and is one."""
        known = self._seen.get(id(value))
        if known is not None:
            return known[1]
        node = self._node(value, where, depth)
        extension = msgspec.msgpack.Ext(NODE, len(self.nodes).to_bytes(4, "little"))
        self.nodes.append(node)
        if node[0] not in CONTAINERS:
            self._seen[id(value)] = value, extension
        return extension

    def _node(self, value: Any, where: str, depth: int) -> list[Any]:
        kind = type(value)
        if kind in (tuple, set, frozenset):
            return [kind.__name__, [self.part(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]]
        if kind is dict:
            return ["dict", [self._pair(key, item, where, depth + 1) for key, item in value.items()]]
        if kind in (bytes, bytearray):
            return self._bytes(value)
        text = to_text(value)
        if text is not None:
            return list(text)
        found = self._named(value, lambda part: self.part(part, where, depth + 1)) or self._array(value, where)
        if found is not None:
            return found
        if kind is range or kind is slice:
            return [kind.__name__, [self.part(end, where, depth + 1) for end in (value.start, value.stop, value.step)]]
        plain = self._types.plain(kind)
        if plain is not None:
            return ["made", self._types.name(kind), self.part(plain[0](value), where, depth + 1)]
        if travels_by_name(kind):
            return self._by_name(value, where, depth)
        raise WireTypeError(f"{where} is {_article(kind)}, which cannot be sent: {_advice(kind)}")

    def _pair(self, key: Any, item: Any, where: str, depth: int) -> list[Any]:
        return [
            self.part(key, f"the key {key!r:.40} of {where}", depth),
            self.part(item, f"{where}[{key!r:.40}]", depth),
        ]

    def _bytes(self, value: bytes | bytearray) -> list[Any]:
        tag = type(value).__name__
        if len(value) <= _INLINE_BYTES:
            return [tag, bytes(value)]
        return [tag, self._buffer(memoryview(value))]

    def _buffer(self, view: memoryview) -> int:
        self.buffers.append(view)
        return len(self.buffers) - 1

    def _array(self, value: Any, where: str) -> list[Any] | None:
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None and type(value) is numpy.ndarray:
            parts, view = array_parts(value, where)
            return ["array", *parts, self._buffer(view)]
        if numpy is not None and isinstance(value, numpy.generic):
            parts, view = array_parts(numpy.asarray(value), where)
            return ["scalar", parts[0], bytes(view)]
        if torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter):
            parts, view = tensor_parts(value, where)
            return ["tensor" if type(value) is torch.Tensor else "parameter", *parts, self._buffer(view)]
        if torch is not None and isinstance(value, torch.dtype):
            return ["dtype", str(value)]
        return None

    def _by_name(self, value: Any, where: str, depth: int) -> list[Any]:
        kind = type(value)
        name = self._types.name(kind)
        if name is None:
            raise WireTypeError(
                f"{where} is {_article(kind)}, which is not known to the wire: call "
                f"twinkle.register_type({kind.__name__}) on both sides"
            )
        if issubclass(kind, enum.Enum):
            named = value.name in kind.__members__
            return (
                ["enum", name, value.name] if named else ["enum", name, None, self.part(value.value, where, depth + 1)]
            )
        if is_named_tuple(kind):
            return ["named", name, [self.part(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]]
        check_built(kind, where)
        fields = self._fields(value, where)
        return ["data", name, {key: self.part(item, f"{where}.{key}", depth + 1) for key, item in fields.items()}]

    def _fields(self, value: Any, where: str) -> Mapping[str, Any]:
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        extra = set(getattr(value, "__dict__", ())) - fields.keys()
        extra = {name for name in extra if not isinstance(getattr(type(value), name, None), cached_property)}
        if extra:
            raise WireTypeError(
                f"{where} is {_article(type(value))} with attributes that are no fields, which would be lost: "
                f"{', '.join(sorted(extra))}"
            )
        return fields


def _article(kind: type) -> str:
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _advice(kind: type) -> str:
    for base in (dict, list, tuple, str, int, float, bytes, set, frozenset):
        if issubclass(kind, base):
            return f"make it a plain {base.__name__}, {base.__name__}(x)"
    return "send numbers, text, bytes, lists, dicts, arrays, tensors, or a dataclass with twinkle.register_type"
