"""Values whose large buffers lie in a segment of this host; what travels is small."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import ray

from twinkle_ray.objects.pickling import Pickled
from twinkle_ray.ray_internals import when_out_of_scope

if TYPE_CHECKING:
    from ray import ObjectRef

    from twinkle_ray.objects.shared_memory.segment_ref import SegmentRef

WORTH_PLACING: Final = 1 << 20  # bytes of buffers; for fewer, a segment costs more than the copies of their readers
_allowed = False


@dataclass(frozen=True, slots=True)
class Placed:
    """A pickled value whose buffers lie in a segment.

    Attributes:
        head: The pickle.
        refs: The object refs in it, in order.
        segment: The segment.
        spans: Where each buffer begins, and its size in bytes.
    """

    head: bytes
    refs: tuple[ObjectRef[Any], ...]
    segment: SegmentRef
    spans: tuple[tuple[int, int], ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return Placed, (self.head, self.refs, self.segment, self.spans)

    def mapped(self) -> Pickled:
        """The pickled value, over a private mapping of this process.

        Raises:
            GoneError: The process that has put it has ended.
        """
        from twinkle_ray.objects.shared_memory.mappings import opened  # a small worker has no large values

        return Pickled(self.head, opened(self.segment, self.spans), self.refs)

    def open(self) -> Any:
        """The value; large arrays are views of a private mapping."""
        return self.mapped().open()

    @property
    def nbytes(self) -> int:
        """Bytes of the head and the buffers."""
        return len(self.head) + sum(size for _, size in self.spans)


def place(pickled: Pickled) -> tuple[ObjectRef[Any], Placed] | None:
    """Copy the buffers of a pickled value into a segment, which lives as long as the ref; None where that is no gain.

    Returns:
        The ref, of the placed value, and this value.
    """
    if not _allowed or sum([memoryview(buffer).nbytes for buffer in pickled.buffers]) < WORTH_PLACING:
        return None
    from twinkle_ray.objects.shared_memory import segments  # as above

    pool = segments.pool
    found = pool.put(pickled.buffers)
    if found is None:
        return None
    segment, starts, file = found
    spans = [(start, memoryview(buffer).nbytes) for start, buffer in zip(starts, pickled.buffers, strict=True)]
    placed = Placed(bytes(pickled.head), pickled.refs, segment, tuple(spans))
    kept = False
    try:
        ref: ObjectRef[Any] = ray.put(placed)
        kept = when_out_of_scope(ref, lambda: pool.release(file))
    finally:
        if not kept:
            pool.release(file)
    return (ref, placed) if kept else None


def allow(*, placing: bool) -> None:
    """From now on, large values of this process are placed in segments, or not."""
    global _allowed
    _allowed = placing


def may_open(pid: int, descriptor: int) -> bool:
    """Whether this process may open a file that a process of this host has opened."""
    with suppress(OSError):  # it may not: False
        os.close(os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC))
        return True
    return False


class MemoryOffer(NamedTuple):
    """The driver's offer to a worker.

    Attributes:
        placing: The readers of the worker's values may open its memory, so that it places large ones in segments.
        driver: Process and descriptor of a file of the driver; None for a worker of another node.
    """

    placing: bool
    driver: tuple[int, int] | None = None
