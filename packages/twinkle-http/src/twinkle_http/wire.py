"""Values as bytes and back: plain values stand for themselves, all others are tagged, and arrays are raw buffers.

message   b"TWK3", the bytes of the head (8, little endian), the head, the buffers, each at a multiple of 16
head      [tree, sizes of the buffers] as MessagePack
tree      None, booleans, numbers, text, short bytes, lists, and dicts with text keys stand for themselves;
          every other value is {"": [tag, parts...]}

Nothing is unpickled, imported, or called by a name in a message: the tags are those of `_READERS`, and the classes are
those that this process has registered (`TypeNames`). A reader takes the buffers in their order, each once, so that no
small message stands for a large value. A large array is a view of its message, and keeps it.
"""

from __future__ import annotations

import dataclasses
import enum
import struct
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from twinkle_http.arrays import array_parts, tensor_parts, to_array, to_tensor
from twinkle_http.errors import WireFormatError, WireTypeError, error_of_parts, parts_of_error
from twinkle_remote.errors import RemoteCallError
from twinkle_remote.rows import TYPES, is_named_tuple, travels_by_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from twinkle_remote.rows import TypeNames

    TagOf = Callable[[Any, Callable[[Any], Any]], list[Any] | None]

DEPTH = 100
MOST_HEAD_BYTES = 64 << 20
_PREFIX = struct.Struct("<4sQ")
_MAGIC = b"TWK3"
_ALIGNED = 16
_INLINE_BYTES = 1024
_COPIED_BYTES = 1 << 20  # smaller buffers do not keep their message
_ERROR_DEPTH = 15  # that each exception counts: causes of causes are cut off early
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1  # integers of MessagePack
_ADVICE = (
    "send plain values, plain containers, arrays, tensors, a dataclass with twinkle.register_type(cls), or another "
    "class with twinkle.register_type(cls, to_plain=..., from_plain=...)"
)
_MADE: Mapping[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    tuple: (list, tuple),
    set: (list, set),
    frozenset: (list, frozenset),
    dict: (lambda value: [list(pair) for pair in value.items()], dict),
    range: (lambda value: [value.start, value.stop, value.step], lambda ends: range(*ends)),
    slice: (lambda value: [value.start, value.stop, value.step], lambda ends: slice(*ends)),
    int: (lambda value: format(value, "x"), lambda text: int(text, 16)),
}
"""Types of Python: what stands for a value in the tree, and what makes the value of it again."""
_SCALARS = frozenset({type(None), bool, float, str})
_PLAIN = _SCALARS | {int, bytes}


class WireMessage(NamedTuple):
    """A message to send: its head, and views of the values' own memory."""

    parts: Sequence[memoryview[int]]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole message."""
        return sum(part.nbytes for part in self.parts)

    def chunks(self, size: int = 1 << 20) -> Iterator[memoryview]:
        """The message in parts of at most `size` bytes; nothing is copied."""
        for view in self.parts:
            for start in range(0, view.nbytes, size):
                yield view[start : start + size]

    def to_bytes(self) -> bytes:
        """The message as one value."""
        return b"".join(self.parts)


def framed(tree: Any, buffers: Sequence[memoryview] = (), *, what: str = "the value") -> WireMessage:
    """The message of a tree (or of an envelope, a msgspec struct) and its buffers.

    Raises:
        WireTypeError: A text has lone surrogates.
    """
    try:
        head = msgspec.msgpack.encode([tree, [view.nbytes for view in buffers]])
    except UnicodeEncodeError as error:
        raise WireTypeError(f"{what} holds text that is no Unicode, with lone surrogates: {error}") from None
    parts = [memoryview(_PREFIX.pack(_MAGIC, len(head)) + head)]
    size = parts[0].nbytes
    for view in buffers:
        parts += [memoryview(bytes(-size % _ALIGNED)), view]
        size += -size % _ALIGNED + view.nbytes
    return WireMessage(parts)


def opened(data: bytes | bytearray) -> tuple[Any, Iterator[memoryview]]:
    """The tree of a message, and its buffers.

    Raises:
        WireFormatError: The bytes are no message of this format, or its head is too large.
    """
    if len(data) < _PREFIX.size or bytes(data[:4]) != _MAGIC:
        raise WireFormatError(f"this is no message of this version of twinkle: it does not begin with {_MAGIC!r}")
    size = _PREFIX.unpack_from(data)[1]
    if size > MOST_HEAD_BYTES:
        raise WireFormatError(f"the head of a message has at most {MOST_HEAD_BYTES} bytes, not {size}")
    view, end = memoryview(data), _PREFIX.size + size
    try:
        tree, sizes = msgspec.msgpack.decode(view[_PREFIX.size : end], type=tuple[Any, list[int]])
    except (msgspec.MsgspecError, RecursionError, ValueError, TypeError) as error:
        raise WireFormatError(f"the head of a message cannot be read: {error}") from None
    if min(sizes, default=0) < 0 or end + sum(sizes) > len(data):
        raise WireFormatError(f"the message is cut off after {len(data)} bytes")
    return tree, _cut(view, end, sizes)


def _cut(view: memoryview, at: int, sizes: Sequence[int]) -> Iterator[memoryview]:
    for size in sizes:
        at += -at % _ALIGNED
        if at + size > view.nbytes:
            raise WireFormatError(f"the message is cut off after {view.nbytes} bytes")
        yield view[at : at + size] if size >= _COPIED_BYTES else memoryview(bytearray(view[at : at + size]))
        at += size
    if at != view.nbytes:
        raise WireFormatError("there are bytes behind the end of the message")


def encode(
    value: Any, types: TypeNames = TYPES, *, what: str = "the value", named: TagOf = lambda value, part: None
) -> WireMessage:
    """The message of a value; see `Writer`."""
    writer = Writer(types, named)
    return framed(writer.tree(value, what), writer.buffers, what=what)


def encoded_error(error: BaseException, named: TagOf = lambda value, part: None) -> bytes:
    """An exception as a message: of another type with its text, if it does not travel."""
    try:
        return encode(error, what="the error", named=named).to_bytes()
    except Exception:  # whatever its own attributes raise: who waits for the call is told all the same
        return encode(RemoteCallError(f"{type(error).__qualname__}: {ascii(str(error))[1:-1]}")).to_bytes()


class Writer:
    """Makes the trees of values, and collects their buffers.

    Args:
        types: Classes that travel by name.
        named: The tag and the parts of a value that only the two sides know, such as a lazy result; None for others. It
            is called with the value and with a function that makes the tree of a part.
    """

    def __init__(self, types: TypeNames = TYPES, named: TagOf = lambda value, part: None) -> None:
        self.buffers: list[memoryview] = []
        self._types, self._named = types, named

    def tree(self, value: Any, where: str, depth: int = 0) -> Any:
        """The tree of a value, whose name is `where` in errors, within `depth` others.

        Raises:
            WireTypeError: It holds a value of a type that cannot be sent; the message names the type and the place.
        """
        kind = type(value)
        if kind in _SCALARS or (kind is int and _LEAST <= value <= _MOST):
            return value
        if depth > DEPTH:
            raise WireTypeError(f"{where:.200} is more than {DEPTH} values deep, or contains itself")
        if kind is list:
            kinds = set(map(type, value))
            if kinds <= _SCALARS or (kinds == {int} and min(value) >= _LEAST and max(value) <= _MOST):
                return value
            return self._items(value, where, depth)
        if kind is dict and "" not in value and all(type(key) is str for key in value):
            return {key: self.tree(item, f"{where}[{key!r:.40}]", depth + 1) for key, item in value.items()}
        if kind is bytes and len(value) <= _INLINE_BYTES:
            return value
        tagged = self._named(value, lambda part: self.tree(part, where, depth + 1))
        return {"": tagged or self._array(value, where) or self._other(value, where, depth)}

    def _items(self, values: Iterable[Any], where: str, depth: int) -> list[Any]:
        return [self.tree(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(values)]

    def _other(self, value: Any, where: str, depth: int) -> list[Any]:
        kind = type(value)
        if kind in _MADE:
            return [kind.__name__, self.tree(_MADE[kind][0](value), where, depth)]
        if kind is bytes or kind is bytearray:
            self.buffers.append(memoryview(value))
            return [kind.__name__]
        if isinstance(value, BaseException):
            parts = parts_of_error(value, lambda part: self._travels(part, depth))
            return ["error", *self._items(parts, where, depth + _ERROR_DEPTH)]
        if self._types.plain(kind) is not None or travels_by_name(kind):
            if (name := self._types.name(kind)) is None:
                raise WireTypeError(
                    f"{where} is {_article(kind)}, which is not known to the wire: call "
                    f"twinkle.register_type({kind.__name__}) on both sides"
                )
            return ["made", name, self.tree(_forms(self._types, kind)[0](value), where, depth + 1)]
        raise WireTypeError(f"{where} is {_article(kind)}, which cannot be sent: {_ADVICE}")

    def _travels(self, value: Any, depth: int) -> bool:
        """Whether a part of an exception can be sent."""
        try:
            framed(Writer(self._types, self._named).tree(value, "", depth + _ERROR_DEPTH))
        except (WireTypeError, RecursionError):
            return False
        return True

    def _array(self, value: Any, where: str) -> list[Any] | None:
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None and isinstance(value, numpy.generic):
            return ["scalar", array_parts(numpy.asarray(value), where)[0][0], value.tobytes()]
        if numpy is not None and type(value) is numpy.ndarray:
            tag, (parts, view) = "array", array_parts(value, where)
        elif torch is not None and type(value) is torch.Tensor:
            tag, (parts, view) = "tensor", tensor_parts(value, where)
        else:
            return None
        self.buffers.append(view)
        return [tag, *parts]


def _article(kind: type) -> str:
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _forms(types: TypeNames, kind: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """The functions that give the plain form of a value of a class, and make the value again, by its constructor."""
    if (plain := types.plain(kind)) is not None:
        return plain
    if issubclass(kind, enum.Enum):
        return lambda value: value.value, kind
    return (list, kind._make) if is_named_tuple(kind) else (_fields_of, lambda fields: kind(**fields))


def _fields_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that its constructor takes."""
    kind, fields = type(value), dataclasses.fields(value)
    more = set(getattr(value, "__dict__", ())) - {field.name for field in fields}
    if lost := sorted(key for key in more if not isinstance(getattr(kind, key, None), cached_property)):
        raise WireTypeError(f"{_article(kind)} has attributes that are no fields: {', '.join(lost)} would be lost")
    return {field.name: getattr(value, field.name) for field in fields if field.init}


def decode(data: bytes | bytearray, types: TypeNames = TYPES, **options: Any) -> Any:
    """The value of a message; see `value_of`."""
    return value_of(*opened(data), types, **options)


def value_of(tree: Any, buffers: Iterator[memoryview], types: TypeNames = TYPES, **options: Any) -> Any:
    """The value of a tree, which uses all of the buffers; the options are those of `TreeReader`.

    Raises:
        WireFormatError: The message exceeds a limit, or names what is not known here.
    """
    reader = TreeReader(buffers, types, **options)
    try:
        value = reader.value(tree, 0)
    except RecursionError:
        raise WireFormatError("the message is nested too deeply") from None
    if next(buffers, None) is not None:
        raise WireFormatError("the message has a buffer that no value uses")
    return value


class TreeReader:
    """Makes the values of one tree.

    Args:
        buffers: The buffers of its message.
        types: The classes that travel by name; others are refused.
        named: Makes the value of a tag that the wire does not know, such as that of a lazy result, of the tag and its
            parts; raises WireFormatError for others.
        error_type: The class of an exception by its name; None for one that is not known here.
        read_only: Arrays cannot be written to.
    """

    def __init__(
        self,
        buffers: Iterator[memoryview],
        types: TypeNames,
        *,
        named: Callable[[list[Any]], Any] | None = None,
        error_type: Callable[[str], type | None] = lambda name: None,
        read_only: bool = False,
    ) -> None:
        self._buffers, self._types = buffers, types
        self._named, self.error_type, self._read_only = named, error_type, read_only

    def value(self, part: Any, depth: int) -> Any:
        """The value of a part of the tree."""
        kind = type(part)
        if kind in _PLAIN:
            return part
        if depth > DEPTH:
            raise WireFormatError(f"a message is at most {DEPTH} values deep here")
        if kind is list:
            return part if _PLAIN.issuperset(map(type, part)) else self.items(part, depth)
        if kind is not dict or not all(type(key) is str for key in part):
            raise WireFormatError(f"a {kind.__name__} of MessagePack, or a key that is no text, stands for no value")
        if "" not in part:
            return {key: self.value(item, depth + 1) for key, item in part.items()}
        return self._tagged(part[""], depth)

    def items(self, parts: Any, depth: int) -> list[Any]:
        """The values of a list of parts."""
        if type(parts) is not list:
            raise WireFormatError(f"{parts!r:.40} is no list of parts")
        return [self.value(part, depth + 1) for part in parts]

    def _tagged(self, tagged: Any, depth: int) -> Any:
        if type(tagged) is not list or not tagged or type(tagged[0]) is not str:
            raise WireFormatError("a tagged value is a tag and its parts")
        tag, *parts = tagged
        read = _READERS.get(tag)
        if read is None:
            if self._named is None:
                raise WireFormatError(f"the tag {tag!r:.40} is not known here")
            return self._named([tag, *(self.value(part, depth + 1) for part in parts)])
        try:
            return read(self, depth, *parts)
        except WireFormatError:
            raise
        except Exception as error:  # also what the constructor of a class raises
            advice = f"; if its constructor does not take its fields: {_ADVICE}" if tag == "made" else ""
            raise WireFormatError(f"a {tag!r:.40} does not hold what it should: {error}{advice}") from error

    def buffer(self) -> memoryview:
        """The next buffer."""
        found = next(self._buffers, None)
        if found is None:
            raise WireFormatError("the message has fewer buffers than its values need")
        return found

    def made(self, depth: int, name: Any, plain: Any) -> Any:
        """A value of a class that this process has registered."""
        kind = self._types.find(name) if isinstance(name, str) else None
        if kind is None:
            raise WireFormatError(f"the type {name!r:.120} is not known here: call twinkle.register_type on both sides")
        return _forms(self._types, kind)[1](self.value(plain, depth + 1))

    def array(self, depth: int, dtype: Any, shape: Any) -> Any:
        """A numpy array over its buffer."""
        made = to_array(dtype, shape, self.buffer())
        made.flags.writeable = made.flags.writeable and not self._read_only
        return made


def _maker(make: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda reader, depth, plain: make(reader.value(plain, depth))


_READERS: Mapping[str, Callable[..., Any]] = {
    **{kind.__name__: _maker(make) for kind, (_, make) in _MADE.items()},
    "bytes": lambda reader, depth: bytes(reader.buffer()),
    "bytearray": lambda reader, depth: bytearray(reader.buffer()),
    "made": TreeReader.made,
    "error": lambda reader, depth, *parts: error_of_parts(reader.error_type, *reader.items(list(parts), depth)),
    "array": TreeReader.array,
    "scalar": lambda reader, depth, dtype, data: to_array(dtype, [], data)[()],
    "tensor": lambda reader, depth, dtype, shape, grad: to_tensor(dtype, shape, grad, reader.buffer()),
}
