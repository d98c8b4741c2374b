"""gzip of bodies: made and read in parts, with a bound on what comes out."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from twinkle_http.wire.errors import WireFormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

GZIP = "gzip"
_PART = 1 << 20
_LEVEL = 1  # numbers gain little more by the higher ones, and those cost many times the time
_GZIP_ONLY = 16 + zlib.MAX_WBITS


class InflatedTooLargeError(WireFormatError):
    """Compressed bytes that stand for more than is accepted."""


class Inflater:
    """Reads compressed bytes; never holds more than a part of what they stand for.

    Args:
        most: Bytes that may come out.

    Attributes:
        size: Bytes that came out.
    """

    def __init__(self, most: int) -> None:
        self.size = 0
        self._most = most
        self._reader = zlib.decompressobj(_GZIP_ONLY)

    def parts(self, data: bytes | memoryview) -> Iterator[bytes]:
        """The meaning of the next bytes, in parts of at most 1 MiB.

        Raises:
            InflatedTooLargeError: It is more than `most`.
            WireFormatError: The bytes are no gzip.
        """
        left: bytes | memoryview = data
        while len(left) and not self._reader.eof:
            try:
                part = self._reader.decompress(left, _PART)
            except zlib.error as error:
                raise WireFormatError(f"the body is no gzip: {error}") from None
            left = self._reader.unconsumed_tail
            self.size += len(part)
            if self.size > self._most:
                raise InflatedTooLargeError(
                    f"a body has at most {self._most} bytes here, and this one decompresses to more"
                )
            if part:
                yield part
        if self._reader.eof and (self._reader.unused_data or len(left)):
            raise WireFormatError("there are bytes behind the end of the compressed body")

    def finish(self) -> None:
        """Check that the end has come.

        Raises:
            WireFormatError: It has not.
        """
        if not self._reader.eof:
            raise WireFormatError(f"the compressed body is cut off after {self.size} bytes")


def inflated(chunks: Iterable[bytes], most: int) -> Iterator[bytes]:
    """The bytes that compressed chunks stand for; see `Inflater`."""
    inflater = Inflater(most)
    for chunk in chunks:
        yield from inflater.parts(chunk)
    inflater.finish()


def deflated(chunks: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """Chunks, compressed; the same ones give the same bytes."""
    made = writer()
    for chunk in chunks:
        part = made.compress(chunk)
        if part:
            yield part
    yield made.flush()


def writer() -> zlib._Compress:
    """The compressor of one body."""
    return zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_ONLY)
