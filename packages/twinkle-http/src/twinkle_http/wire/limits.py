"""Limits of what a reader of messages accepts."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one message; a message beyond one is refused before its content is read.

    Attributes:
        body: Bytes of the whole message.
        tree: Bytes of the part that is no raw buffer.
        buffers: Number of raw buffers.
        depth: Values within values.
    """

    body: int = 16 << 30
    tree: int = 64 * MIB
    buffers: int = 100_000
    depth: int = 100
