"""From a message to a value: nothing is imported, called by name, or trusted."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Any

import msgspec

from twinkle_http.wire.arrays import TORCH_DTYPES, to_array, to_tensor
from twinkle_http.wire.dataclass_fields import build
from twinkle_http.wire.encode import CONTAINERS, NODE, encode
from twinkle_http.wire.errors import WireFormatError, WireTypeError
from twinkle_http.wire.frame import TREES, read_frame
from twinkle_http.wire.limits import Limits
from twinkle_http.wire.scalars import from_text, is_scalar_tag
from twinkle_remote.values import is_named_tuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from twinkle_http.wire.frame import Tree
    from twinkle_http.wire.memory import Buffer
    from twinkle_remote.values import TypeNames

_DEFAULTS = Limits()
_USED = -1
_PLAIN = frozenset({type(None), bool, int, float, str})


def decode(
    parts: Iterable[bytes | memoryview],
    types: TypeNames,
    *,
    named: Callable[[list[Any]], Any] | None = None,
    limits: Limits = _DEFAULTS,
    read_only: bool = False,
) -> Any:
    """The value of a message.

    Args:
        parts: The message's bytes, in parts.
        types: Classes that travel by name; others are refused.
        named: Makes the value of a node that is a name, such as a lazy result; raises WireFormatError for others.
        limits: What is accepted.
        read_only: Arrays cannot be written to.

    Raises:
        WireFormatError: The bytes are no message, exceed a limit, or name what is not known here.
    """
    tree, buffers = read_frame(parts, limits, TREES)
    return value_of(tree, buffers, types, named=named, limits=limits, read_only=read_only)


def value_of(
    tree: Tree[Any],
    buffers: list[Buffer],
    types: TypeNames,
    *,
    named: Callable[[list[Any]], Any] | None = None,
    limits: Limits = _DEFAULTS,
    read_only: bool = False,
) -> Any:
    """The value of a message that was read; see `decode`.

    Args:
        tree: The tree.
        buffers: Its buffers.
        types: As for `decode`.
        named: As there.
        limits: As there.
        read_only: Arrays cannot be written to.
    """
    (value,) = values_of((tree.root,), tree.nodes, buffers, types, named=named, limits=limits, read_only=read_only)
    return value


def values_of(
    roots: Sequence[Any],
    nodes: list[list[Any]],
    buffers: list[Buffer],
    types: TypeNames,
    *,
    named: Callable[[list[Any]], Any] | None = None,
    limits: Limits = _DEFAULTS,
    read_only: bool = False,
) -> list[Any]:
    """The values of several trees that share their nodes; see `decode`.

    Args:
        roots: What stands for each value.
        nodes: The nodes.
        buffers: Their buffers.
        types: As for `decode`.
        named: As there.
        limits: As there.
        read_only: Arrays cannot be written to.
    """
    decoder = _Decoder(nodes, buffers, types, named, limits.depth, read_only)
    try:
        return [decoder.part(root, 0) for root in roots]
    except RecursionError:
        raise WireFormatError("the message is nested too deeply") from None


class _Decoder:
    """Makes each node once.

    A node may only contain nodes before it, and a container is used once: so there are no cycles, and a small message
    stands for no huge value.
    """

    def __init__(
        self,
        nodes: list[list[Any]],
        buffers: list[Buffer],
        types: TypeNames,
        named: Callable[[list[Any]], Any] | None,
        depth: int,
        read_only: bool,
    ) -> None:
        self._read_only = read_only
        self._nodes = nodes
        self._buffers = buffers
        self._types = types
        self._named = named
        self._depth = depth
        self._made: list[Any] = []
        self._depths: list[int] = []  # of each node that was made; a container that was used has none
        self._deepest = 0
        for node in nodes:
            self._deepest = 0
            self._made.append(self._make(node))
            self._depths.append(self._deepest + 1)

    def part(self, value: Any, depth: int) -> Any:
        """The value of a part of the tree."""
        kind = type(value)
        if kind is msgspec.msgpack.Ext:
            return self._at(value, depth)
        self._go_to(depth)
        if kind is list:
            if _PLAIN.issuperset(map(type, value)):
                if value:
                    self._go_to(depth + 1)
                return value
            return [self.part(item, depth + 1) for item in value]
        if kind is dict:
            if not all(type(key) is str for key in value):
                raise WireFormatError("the keys of a plain dict are text")
            return {key: self.part(item, depth + 1) for key, item in value.items()}
        if kind is bytes:
            raise WireFormatError("bytes stand in a node")
        return value

    def _at(self, extension: Any, depth: int) -> Any:
        if extension.code != NODE or len(extension.data) != 4:
            raise WireFormatError(f"an extension of code {extension.code} is not known")
        index = int.from_bytes(extension.data, "little")
        if index >= len(self._made):
            raise WireFormatError(f"node {index} is named before it is defined")
        if self._depths[index] == _USED:
            raise WireFormatError(f"node {index} is a container that is named twice")
        self._go_to(depth + self._depths[index])
        if self._nodes[index][0] in CONTAINERS:
            self._depths[index] = _USED
        return self._made[index]

    def _go_to(self, depth: int) -> None:
        self._deepest = max(self._deepest, depth)
        if depth > self._depth:
            raise WireFormatError(f"a message is at most {self._depth} values deep here")

    def _make(self, node: Any) -> Any:
        if not isinstance(node, list) or not node or not isinstance(node[0], str):
            raise WireFormatError("a node is a tag and its parts")
        tag, *parts = node
        try:
            if is_scalar_tag(tag):
                (text,) = parts
                return from_text(tag, text)
            calls = _MAKERS.get(tag)
            if calls is not None:
                return calls(self, *parts)
        except WireFormatError:
            raise
        except (TypeError, ValueError, KeyError, IndexError, OverflowError, AttributeError) as error:
            raise WireFormatError(f"a node {tag!r:.40} does not hold what it should: {error}") from None
        if self._named is None:
            raise WireFormatError(f"a node {tag!r:.40} is not known")
        return self._named([tag, *(self.part(part, 0) for part in parts)])

    def _items(self, items: Any) -> list[Any]:
        if not isinstance(items, list):
            raise WireFormatError("items are a list")
        return [self.part(item, 0) for item in items]

    def _tuple(self, items: Any) -> tuple[Any, ...]:
        return tuple(self._items(items))

    def _set(self, items: Any) -> set[Any]:
        made = set(self._items(items))
        _check_all_different(made, items)
        return made

    def _frozenset(self, items: Any) -> frozenset[Any]:
        made = frozenset(self._items(items))
        _check_all_different(made, items)
        return made

    def _dict(self, pairs: Any) -> dict[Any, Any]:
        made = {self.part(key, 0): self.part(item, 0) for key, item in pairs}
        _check_all_different(made, pairs)
        return made

    def _bytes(self, data: Any) -> bytes:
        return data if isinstance(data, bytes) else bytes(self._buffer(data))

    def _bytearray(self, data: Any) -> bytearray:
        return bytearray(data) if isinstance(data, bytes) else bytearray(self._buffer(data))

    def _range(self, ends: Any) -> range:
        return range(*self._items(ends))

    def _slice(self, ends: Any) -> slice:
        start, stop, step = self._items(ends)
        return slice(start, stop, step)

    def _buffer(self, index: Any) -> Buffer:
        if type(index) is not int or not 0 <= index < len(self._buffers):
            raise WireFormatError(f"{index!r:.40} is no index of a buffer")
        return self._buffers[index]

    def _array(self, dtype: Any, shape: Any, index: Any) -> Any:
        made = to_array(dtype, shape, self._buffer(index))
        if self._read_only:
            made.flags.writeable = False
        return made

    def _scalar(self, dtype: Any, data: Any) -> Any:
        if not isinstance(data, bytes):
            raise WireFormatError("a scalar has bytes")
        return to_array(dtype, [], bytearray(data))[()]

    def _tensor(self, dtype: Any, shape: Any, requires_grad: Any, index: Any) -> Any:
        return to_tensor(dtype, shape, requires_grad, self._buffer(index))

    def _parameter(self, dtype: Any, shape: Any, requires_grad: Any, index: Any) -> Any:
        from torch.nn import Parameter

        return Parameter(to_tensor(dtype, shape, False, self._buffer(index)), bool(requires_grad))

    def _type(self, name: Any) -> Any:
        kind = self._types.find(name) if isinstance(name, str) else None
        if kind is None:
            raise WireFormatError(
                f"the type {name!r:.120} is not known here: call twinkle.register_type with it on both sides"
            )
        return kind

    def _enum(self, name: Any, member: Any, value: Any = None) -> Any:
        kind = self._type(name)
        if not issubclass(kind, enum.Enum):
            raise WireFormatError(f"{name!r:.120} is no enum")
        return kind[member] if isinstance(member, str) else kind(self.part(value, 0))

    def _named_tuple(self, name: Any, items: Any) -> Any:
        kind = self._type(name)
        values = self._items(items)
        if not is_named_tuple(kind) or len(values) != len(kind._fields):
            raise WireFormatError(f"{name!r:.120} is no named tuple of {len(values)} fields here")
        return tuple.__new__(kind, values)

    def _data(self, name: Any, fields: Any) -> Any:
        kind: Any = self._type(name)
        if not dataclasses.is_dataclass(kind):
            raise WireFormatError(f"{name!r:.120} is no dataclass")
        known = {field.name for field in dataclasses.fields(kind)}
        if not isinstance(fields, dict) or fields.keys() != known:
            given = sorted(map(str, fields)) if isinstance(fields, dict) else "none"
            raise WireFormatError(f"{name!r:.120} has the fields {sorted(known)} here, and {given} arrived")
        return build(kind, name, {key: self.part(item, 0) for key, item in fields.items()}, self._are_same)

    def _are_same(self, one: Any, other: Any) -> bool:
        if one is other or type(one) is not type(other):
            return one is other
        try:
            return encode(one, self._types).to_bytes() == encode(other, self._types).to_bytes()
        except (WireTypeError, RecursionError):  # they hold what one side alone knows, such as handles
            return _are_equal(one, other)

    def _made_of(self, name: Any, plain: Any) -> Any:
        how = self._types.plain(self._type(name))
        if how is None:
            raise WireFormatError(f"{name!r:.120} has no plain form here")
        return how[1](self.part(plain, 0))


def _are_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # such as arrays next to handles
        return False


def _check_all_different(made: Any, given: Any) -> None:
    if len(made) != len(given):
        raise WireFormatError("a set or dict has two equal members or keys")


def _dtype(name: Any) -> Any:
    if name not in TORCH_DTYPES:
        raise WireFormatError(f"{name!r:.80} is no dtype of torch on the wire")
    import torch

    return getattr(torch, str(name).removeprefix("torch."))


_MAKERS: dict[str, Callable[..., Any]] = {
    "tuple": _Decoder._tuple,
    "set": _Decoder._set,
    "frozenset": _Decoder._frozenset,
    "dict": _Decoder._dict,
    "bytes": _Decoder._bytes,
    "bytearray": _Decoder._bytearray,
    "range": _Decoder._range,
    "slice": _Decoder._slice,
    "array": _Decoder._array,
    "scalar": _Decoder._scalar,
    "tensor": _Decoder._tensor,
    "parameter": _Decoder._parameter,
    "dtype": lambda decoder, name: _dtype(name),
    "enum": _Decoder._enum,
    "named": _Decoder._named_tuple,
    "data": _Decoder._data,
    "made": _Decoder._made_of,
}
