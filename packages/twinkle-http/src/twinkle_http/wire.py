"""Values and their trees: plain values stand for themselves, all others are tagged, and arrays are raw buffers beside.

tree      None, booleans, numbers, text, short bytes, lists, and dicts with text keys stand for themselves;
          every other value is {"": [tag, parts...]}

Nothing is unpickled, imported, or called by a name in a message: the tags are those of `_READERS`, and the classes are
those that this process has registered (`TypeNames`). A reader takes the buffers in their order, each once, so that no
small message stands for a large value.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any

from twinkle_http.arrays import array_parts, tensor_parts, to_array, to_parameter, to_tensor, torch_dtype
from twinkle_http.errors import error_of_parts, parts_of_error
from twinkle_http.messages import DEFAULTS, MessageReader, WireFormatError, WireTypeError, framed
from twinkle_remote.errors import RemoteCallError
from twinkle_remote.rows import is_named_tuple, travels_by_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from twinkle_http.messages import Buffer, Limits, WireMessage
    from twinkle_remote.rows import TypeNames

    TagOf = Callable[[Any, Callable[[Any], Any]], list[Any] | None]

_INLINE_BYTES = 1024
_ERROR_DEPTH = 15  # that each exception counts: causes of causes are cut off early
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1  # integers of MessagePack
_SCALARS = frozenset({type(None), bool, float, str})
_PLAIN = _SCALARS | {int, bytes}


def encode(
    value: Any, types: TypeNames, *, what: str = "the value", named: TagOf = lambda value, part: None
) -> WireMessage:
    """The message of a value; see `Writer`."""
    writer = Writer(types, named)
    return framed(writer.tree(value, what), writer.buffers, what=what)


def encoded_error(error: BaseException, types: TypeNames, named: TagOf = lambda value, part: None) -> bytes:
    """An exception as a message: of another type with its text, if it does not travel."""
    try:
        return encode(error, types, what="the error", named=named).to_bytes()
    except Exception:  # whatever its own attributes raise: who waits for the call is told all the same
        text = f"{type(error).__qualname__}: {ascii(str(error))[1:-1]}"
        return encode(RemoteCallError(text), types).to_bytes()


def decode(
    parts: Iterable[bytes | memoryview],
    types: TypeNames,
    *,
    named: Callable[[list[Any]], Any] | None = None,
    error_type: Callable[[str], type | None] = lambda name: None,
    limits: Limits = DEFAULTS,
    read_only: bool = False,
) -> Any:
    """The value of a message.

    Args:
        parts: The bytes of the message.
        types: The classes that travel by name; others are refused.
        named: Makes the value of a tag that the wire does not know, such as that of a lazy result, of the tag and its
            parts; raises WireFormatError for others.
        error_type: The class of an exception by its name; None for one that is not known here.
        limits: What is accepted.
        read_only: Arrays cannot be written to.

    Raises:
        WireFormatError: The bytes are no message, exceed a limit, or name what is not known here.
    """
    reader: MessageReader[Any] = MessageReader(limits)
    for part in parts:
        reader.feed(part)
    root, buffers = reader.finish()
    return value_of(root, buffers, types, named=named, error_type=error_type, limits=limits, read_only=read_only)


class Writer:
    """Makes the trees of values, and collects their buffers.

    Args:
        types: Classes that travel by name.
        named: The tag and the parts of a value that only the two sides know, such as a lazy result; None for others. It
            is called with the value and with a function that makes the tree of a part.
    """

    def __init__(self, types: TypeNames, named: TagOf = lambda value, part: None) -> None:
        self.buffers: list[memoryview] = []
        self._types = types
        self._named = named

    def tree(self, value: Any, where: str, depth: int = 0) -> Any:
        """The tree of a value.

        Args:
            value: Any value of the wire's types, at any depth.
            where: Its name, for errors.
            depth: Values around it.

        Raises:
            WireTypeError: It holds a value of a type that cannot be sent; the message names the type and the place.
        """
        kind = type(value)
        if kind in _SCALARS or (kind is int and _LEAST <= value <= _MOST):
            return value
        if depth > DEFAULTS.depth:
            raise WireTypeError(f"{where:.200} is more than {DEFAULTS.depth} values deep, or contains itself")
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
        if tagged is None:
            tagged = self._array(value, where) or self._other(value, where, depth)
        return {"": tagged}

    def _items(self, values: Iterable[Any], where: str, depth: int) -> list[Any]:
        return [self.tree(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(values)]

    def _other(self, value: Any, where: str, depth: int) -> list[Any]:
        kind = type(value)
        if kind is tuple or kind is set or kind is frozenset:
            return [kind.__name__, self._items(value, where, depth)]
        if kind is dict:
            pairs = [self._items(pair, f"{where} (a key and its value)", depth) for pair in value.items()]
            return ["dict", pairs]
        if kind is bytes or kind is bytearray:
            self.buffers.append(memoryview(value))
            return [kind.__name__]
        if kind is int:
            return ["int", format(value, "x")]
        if kind is range or kind is slice:
            return [kind.__name__, self._items((value.start, value.stop, value.step), where, depth)]
        plain = self._types.plain(kind)
        if plain is not None:
            return ["made", self._types.name(kind), self.tree(plain[0](value), where, depth + 1)]
        if isinstance(value, BaseException):
            parts = parts_of_error(value, lambda part: self._travels(part, depth))
            return ["error", *self._items(parts, where, depth + _ERROR_DEPTH)]
        if travels_by_name(kind):
            return self._by_name(value, where, depth)
        raise WireTypeError(f"{where} is {_article(kind)}, which cannot be sent: {_advice(kind)}")

    def _travels(self, value: Any, depth: int) -> bool:
        """Whether a part of an exception can be sent."""
        try:
            framed(Writer(self._types, self._named).tree(value, "", depth + _ERROR_DEPTH))
        except (WireTypeError, RecursionError):
            return False
        return True

    def _by_name(self, value: Any, where: str, depth: int) -> list[Any]:
        kind = type(value)
        name = self._types.name(kind)
        if name is None:
            raise WireTypeError(
                f"{where} is {_article(kind)}, which is not known to the wire: call "
                f"twinkle.register_type({kind.__name__}) on both sides"
            )
        if isinstance(value, enum.Enum):
            if value.name in kind.__members__:
                return ["enum", name, value.name]
            return ["flag", name, self.tree(value.value, where, depth + 1)]
        if is_named_tuple(kind):
            return ["named", name, self._items(value, where, depth)]
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        lost = set(getattr(value, "__dict__", ())) - {field.name for field in dataclasses.fields(value)}
        lost = {key for key in lost if not isinstance(getattr(kind, key, None), cached_property)}
        if lost:
            what = ", ".join(sorted(lost))
            raise WireTypeError(f"{where} is {_article(kind)} with attributes that are no fields: {what} would be lost")
        return ["data", name, {key: self.tree(getattr(value, key), f"{where}.{key}", depth + 1) for key in fields}]

    def _array(self, value: Any, where: str) -> list[Any] | None:
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None and isinstance(value, numpy.generic):
            return ["scalar", *array_parts(numpy.asarray(value), where)[0][:1], value.tobytes()]
        if numpy is not None and type(value) is numpy.ndarray:
            parts, view = array_parts(value, where)
            self.buffers.append(view)
            return ["array", *parts]
        if torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter):
            parts, view = tensor_parts(value, where)
            self.buffers.append(view)
            return ["tensor" if type(value) is torch.Tensor else "parameter", *parts]
        return ["dtype", str(value)] if torch is not None and isinstance(value, torch.dtype) else None


def _article(kind: type) -> str:
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _advice(kind: type) -> str:
    for base in (dict, list, tuple, str, int, float, bytes, set, frozenset):
        if issubclass(kind, base):
            return f"make it a plain {base.__name__}, {base.__name__}(x)"
    return (
        "send numbers, text, bytes, lists, dicts, arrays, tensors, a dataclass with twinkle.register_type(cls), or "
        "another class with twinkle.register_type(cls, to_plain=..., from_plain=...)"
    )


def value_of(
    root: Any,
    buffers: list[Buffer],
    types: TypeNames,
    *,
    named: Callable[[list[Any]], Any] | None = None,
    error_type: Callable[[str], type | None] = lambda name: None,
    limits: Limits = DEFAULTS,
    read_only: bool = False,
) -> Any:
    """The value of a message that was read; see `decode`."""
    reader = _Reader(buffers, types, named, error_type, limits.depth, read_only)
    try:
        value = reader.value(root, 0)
    except RecursionError:
        raise WireFormatError("the message is nested too deeply") from None
    if reader.left():
        raise WireFormatError("the message has a buffer that no value uses")
    return value


class _Reader:
    """Makes the values of one tree."""

    def __init__(
        self,
        buffers: list[Buffer],
        types: TypeNames,
        named: Callable[[list[Any]], Any] | None,
        error_type: Callable[[str], type | None],
        deepest: int,
        read_only: bool,
    ) -> None:
        self._buffers = iter(buffers)
        self._types = types
        self._named, self._error_type = named, error_type
        self._deepest = deepest
        self._read_only = read_only

    def left(self) -> bool:
        """Whether a buffer was not used."""
        return next(self._buffers, None) is not None

    def value(self, part: Any, depth: int) -> Any:
        """The value of a part of the tree."""
        kind = type(part)
        if kind in _PLAIN:
            return part
        if depth > self._deepest:
            raise WireFormatError(f"a message is at most {self._deepest} values deep here")
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
            raise WireFormatError(
                f"a {tag!r:.40} does not hold what it should: {error}{_ADVICE.get(tag, '')}"
            ) from error

    def buffer(self) -> Buffer:
        """The next buffer."""
        found = next(self._buffers, None)
        if found is None:
            raise WireFormatError("the message has fewer buffers than its values need")
        return found

    def type(self, name: Any, is_one: Callable[[Any], bool]) -> Any:
        """A class that this process has registered."""
        kind = self._types.find(name) if isinstance(name, str) else None
        if kind is None or not is_one(kind):
            raise WireFormatError(
                f"the type {name!r:.120} is not known here, or is of another kind: call twinkle.register_type with it "
                "on both sides"
            )
        return kind

    def array(self, depth: int, dtype: Any, shape: Any) -> Any:
        """A numpy array over its buffer."""
        made = to_array(dtype, shape, self.buffer())
        made.flags.writeable = made.flags.writeable and not self._read_only
        return made

    def fields(self, depth: int, name: Any, fields: Any) -> Any:
        """A dataclass, by its constructor: a message cannot skip the checks of a class."""
        kind = self.type(name, dataclasses.is_dataclass)
        return kind(**{key: self.value(item, depth + 1) for key, item in fields.items()})

    def error(self, depth: int, name: str, *parts: Any) -> BaseException:
        """An exception."""
        return error_of_parts(self._error_type(name), name, *self.items(list(parts), depth))

    def made(self, depth: int, name: Any, plain: Any) -> Any:
        """A value of a class with a plain form."""
        how = self._types.plain(self.type(name, lambda kind: self._types.plain(kind) is not None))
        assert how is not None
        return how[1](self.value(plain, depth + 1))


_ADVICE = {
    "data": "; a class whose constructor does not take its fields travels by twinkle.register_type(cls, to_plain=..., "
    "from_plain=...)"
}


def _is_enum(kind: Any) -> bool:
    return issubclass(kind, enum.Enum)


_READERS: Mapping[str, Callable[..., Any]] = {
    "tuple": lambda reader, depth, items: tuple(reader.items(items, depth)),
    "set": lambda reader, depth, items: set(reader.items(items, depth)),
    "frozenset": lambda reader, depth, items: frozenset(reader.items(items, depth)),
    "dict": lambda reader, depth, pairs: dict(reader.items(pair, depth) for pair in pairs),
    "bytes": lambda reader, depth: bytes(reader.buffer()),
    "bytearray": lambda reader, depth: bytearray(reader.buffer()),
    "int": lambda reader, depth, text: int(text, 16),
    "range": lambda reader, depth, ends: range(*reader.items(ends, depth)),
    "slice": lambda reader, depth, ends: slice(*reader.items(ends, depth)),
    "enum": lambda reader, depth, name, member: reader.type(name, _is_enum)[member],
    "flag": lambda reader, depth, name, value: reader.type(name, _is_enum)(reader.value(value, depth + 1)),
    "named": lambda reader, depth, name, items: reader.type(name, is_named_tuple)._make(reader.items(items, depth)),
    "data": _Reader.fields,
    "made": _Reader.made,
    "error": _Reader.error,
    "array": _Reader.array,
    "scalar": lambda reader, depth, dtype, data: to_array(dtype, [], data)[()],
    "tensor": lambda reader, depth, dtype, shape, grad: to_tensor(dtype, shape, reader.buffer()).requires_grad_(grad),
    "parameter": lambda reader, depth, dtype, shape, grad: to_parameter(to_tensor(dtype, shape, reader.buffer()), grad),
    "dtype": lambda reader, depth, name: torch_dtype(name),
}
