"""The name of a segment of shared memory, by which processes of its host open it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class GoneError(Exception):
    """A segment is not there any more."""


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """A segment of shared memory, for its readers.

    Attributes:
        pid: The process whose it is.
        fd: Its descriptor of the file.
        inode: Of the file; a later file of that descriptor has another one.
        number: Of the value in it.
        size: Bytes up to the end of the value; the first page is not part of it.
    """

    pid: int
    fd: int
    inode: int
    number: int
    size: int

    def __reduce__(self) -> tuple[Any, ...]:
        return SegmentRef, (self.pid, self.fd, self.inode, self.number, self.size)
