"""The frame of a message: a prefix, a tree, and raw buffers, each aligned to 64 bytes.

prefix   "TWK" and the version (4 bytes), size of the tree (8 bytes, little endian)
tree     MessagePack: the value, its nodes, and the sizes of the buffers
buffers  one after the other, each padded to 64 bytes
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from twinkle_http.wire.errors import WireFormatError
from twinkle_http.wire.memory import new_buffer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from msgspec.msgpack import Decoder

    from twinkle_http.wire.limits import Limits
    from twinkle_http.wire.memory import Buffer

T = TypeVar("T")
VERSION = 1
_PREFIX = struct.Struct("<4sQ")
_MAGIC = b"TWK" + bytes([VERSION])
_ALIGNMENT = 64
_ZEROS = bytes(_ALIGNMENT)


class Tree(msgspec.Struct, Generic[T], array_like=True):
    """The part of a message that is no raw buffer.

    Attributes:
        root: The value: plain values as they are, and extensions that name a node by its index.
        nodes: Values of other types, each a tag and its parts.
        sizes: Bytes of each buffer.
    """

    root: T
    nodes: list[list[Any]]
    sizes: list[int]


@dataclass(frozen=True, slots=True)
class WireMessage:
    """A message to send.

    Attributes:
        head: Prefix and tree.
        buffers: Raw buffers, views of the values' own memory.
    """

    head: bytes
    buffers: Sequence[memoryview]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole message."""
        if not self.buffers:
            return len(self.head)
        return len(self.head) + sum([view.nbytes + _padding(view.nbytes) for view in self.buffers])

    def chunks(self, size: int = 1 << 20) -> Iterator[bytes | memoryview]:
        """The message in parts of at most `size` bytes; buffers are not copied."""
        yield from _cut(memoryview(self.head), size)
        for view in self.buffers:
            yield from _cut(view, size)
            if padding := _padding(view.nbytes):
                yield _ZEROS[:padding]

    def to_bytes(self) -> bytes:
        """The message as one value."""
        return b"".join(self.chunks()) if self.buffers else self.head


def frame(tree: Tree[Any], buffers: Sequence[memoryview]) -> WireMessage:
    """A message of a tree and its buffers."""
    encoded = msgspec.msgpack.encode(tree)
    padding = _padding(_PREFIX.size + len(encoded))
    return WireMessage(_PREFIX.pack(_MAGIC, len(encoded)) + encoded + _ZEROS[:padding], buffers)


TREES = msgspec.msgpack.Decoder(Tree[Any])


class FrameReader(Generic[T]):
    """Reads a message from parts as they arrive, each buffer into memory of its own.

    Args:
        limits: What is accepted.
        decoder: Reads the tree.
    """

    def __init__(self, limits: Limits, decoder: Decoder[Tree[T]] = TREES) -> None:
        self._limits = limits
        self._decoder = decoder
        self._head = bytearray()
        self._tree: Tree[T] | None = None
        self._buffers: list[Buffer] = []  # a buffer is there when its first byte arrives
        self._filled = 0  # bytes of the last one, padding included
        self._total = 0

    def feed(self, data: bytes | memoryview) -> None:
        """Take the next bytes.

        Raises:
            WireFormatError: They are no message, or exceed a limit.
        """
        view = memoryview(data)
        self._total += view.nbytes
        if self._total > self._limits.body:
            raise WireFormatError(f"a message has at most {self._limits.body} bytes here, and this one has more")
        while view.nbytes:
            view = view[self._into_head(view) if self._tree is None else self._into_buffer(self._tree.sizes, view) :]

    def _into_head(self, view: memoryview) -> int:
        """Take bytes of the prefix and the tree; returns how many."""
        count = min(self._missing_of_head(), view.nbytes)
        self._head += view[:count]
        if not self._missing_of_head():
            self._read_head()
        return count

    def _into_buffer(self, sizes: Sequence[int], view: memoryview) -> int:
        """Take bytes of one buffer, or of its padding; returns how many."""
        if self._is_at_end():
            raise WireFormatError("there are bytes behind the end of the message")
        if not self._filled:
            self._buffers.append(new_buffer(sizes[len(self._buffers)]))
        size = len(self._buffers[-1])
        if self._filled < size:
            count = min(size - self._filled, view.nbytes)
            memoryview(self._buffers[-1])[self._filled : self._filled + count] = view[:count]
        else:
            count = min(size + _padding(size) - self._filled, view.nbytes)
            if any(view[:count]):
                raise WireFormatError("the padding of a buffer is not zero")
        self._filled += count
        if self._filled == size + _padding(size):
            self._go_on()
        return count

    def finish(self) -> tuple[Tree[T], list[Buffer]]:
        """The tree and the buffers, when all bytes were fed.

        Raises:
            WireFormatError: The message is cut off.
        """
        if self._tree is None or not self._is_at_end():
            raise WireFormatError(f"the message is cut off after {self._total} bytes")
        return self._tree, self._buffers

    def _missing_of_head(self) -> int:
        if len(self._head) < _PREFIX.size:
            return _PREFIX.size - len(self._head)
        end = _end_of_tree(self._head, self._limits)
        return end + _padding(end) - len(self._head)

    def _read_head(self) -> None:
        end = _end_of_tree(self._head, self._limits)
        tree = _read_tree(memoryview(self._head)[_PREFIX.size : end], self._decoder)
        self._check_sizes(tree.sizes)
        self._tree = tree
        self._go_on()

    def _check_sizes(self, sizes: Sequence[int]) -> None:
        if len(sizes) > self._limits.buffers:
            raise WireFormatError(f"a message has at most {self._limits.buffers} buffers here, not {len(sizes)}")
        if any(size < 0 for size in sizes) or sum(sizes) > self._limits.body:
            raise WireFormatError(f"the buffers of a message have at most {self._limits.body} bytes here")

    def _is_at_end(self) -> bool:
        assert self._tree is not None
        return not self._filled and len(self._buffers) == len(self._tree.sizes)

    def _go_on(self) -> None:
        """Go to the next buffer that has bytes."""
        assert self._tree is not None
        self._filled = 0
        sizes = self._tree.sizes
        while len(self._buffers) < len(sizes) and sizes[len(self._buffers)] == 0:
            self._buffers.append(bytearray())


def read_frame(
    parts: Iterable[bytes | memoryview], limits: Limits, decoder: Decoder[Tree[T]] = TREES
) -> tuple[Tree[T], list[Buffer]]:
    """Read a whole message; see `FrameReader`."""
    reader = FrameReader(limits, decoder)
    for part in parts:
        reader.feed(part)
    return reader.finish()


def read_piece(data: bytes, limits: Limits, decoder: Decoder[Tree[T]] = TREES) -> tuple[Tree[T], list[Buffer]]:
    """Read a message that is in one piece; see `FrameReader`."""
    if _PREFIX.size <= len(data) <= limits.body:
        end = _end_of_tree(data, limits)
        if len(data) == end + _padding(end):
            tree = _read_tree(memoryview(data)[_PREFIX.size : end], decoder)
            if not tree.sizes:
                return tree, []
    return read_frame((data,), limits, decoder)


def _end_of_tree(head: bytes | bytearray, limits: Limits) -> int:
    """Where the tree ends, by the prefix of a message."""
    magic, size = _PREFIX.unpack_from(head)
    if magic != _MAGIC:
        if magic[:3] != _MAGIC[:3]:
            raise WireFormatError("this is no message of twinkle: it does not begin with TWK")
        raise WireFormatError(f"the message has version {magic[3]} of the wire, and this side reads {VERSION}")
    if size > limits.tree:
        raise WireFormatError(f"the tree of a message has at most {limits.tree} bytes here, not {size}")
    return _PREFIX.size + int(size)


def _read_tree(data: memoryview, decoder: Decoder[Tree[T]]) -> Tree[T]:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, ValueError, TypeError) as error:
        raise WireFormatError(f"the tree of a message cannot be read: {error}") from None


def _padding(size: int) -> int:
    return -size % _ALIGNMENT


def _cut(view: memoryview, size: int) -> Iterator[memoryview]:
    for start in range(0, view.nbytes, size):
        yield view[start : start + size]
