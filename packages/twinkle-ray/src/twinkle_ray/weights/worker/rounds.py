"""The rounds of a transfer over a link, as one process runs them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinkle_ray.weights.transport.protocol import Link, LinkMessage, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from twinkle_ray.weights.planning.schedule import Hop


@dataclass(slots=True)
class Outgoing:
    """Bytes of a bucket at its source, and what gives the buffer back."""

    buffer: Tensor
    release: Callable[[], None]


class BufferPool:
    """Buffers for packing, used again once their messages are through."""

    def __init__(self, allocate: Callable[[int], Tensor]) -> None:
        self._allocate = allocate
        self._free: list[Tensor] = []

    def take(self, nbytes: int) -> tuple[Tensor, Callable[[], None]]:
        """A buffer of `nbytes`, and a function that returns it."""
        fitting = [i for i, buffer in enumerate(self._free) if buffer.numel() >= nbytes]
        buffer = (
            self._free.pop(min(fitting, key=lambda i: self._free[i].numel())) if fitting else self._allocate(nbytes)
        )
        return buffer[:nbytes], lambda: self._free.append(buffer)


def run_rounds(
    link: Link,
    rounds: Sequence[Sequence[Hop]],
    process: int,
    outgoing: Callable[[int], Outgoing],
    staging: Mapping[int, Tensor],
    depth: int,
) -> None:
    """Run this process's hops, `depth` rounds in flight.

    Args:
        link: To the other processes.
        rounds: The hops of this process.
        process: Its rank in the link's group.
        outgoing: Bytes of a bucket that this process is the source of.
        staging: Where received buckets go; forwarded from there.
        depth: Rounds that may be under way at once; bounds the memory for packing.
    """
    flying: deque[tuple[Sequence[Work], Sequence[Callable[[], None]]]] = deque()
    arriving: dict[int, Work] = {}
    for hops in rounds:
        while len(flying) >= depth:
            _land(*flying.popleft())
        receives = [hop for hop in hops if hop.receiver == process]
        sends = [hop for hop in hops if hop.sender == process]
        posts = [LinkMessage(hop.sender, hop.bucket, staging[hop.bucket], receive=True) for hop in receives]
        packed: dict[int, Outgoing] = {}
        for hop in sends:
            if hop.forward:
                arriving.pop(hop.bucket, _DONE).wait()
                posts.append(LinkMessage(hop.receiver, hop.bucket, staging[hop.bucket], receive=False))
            else:
                if hop.bucket not in packed:
                    packed[hop.bucket] = outgoing(hop.bucket)
                posts.append(LinkMessage(hop.receiver, hop.bucket, packed[hop.bucket].buffer, receive=False))
        afterwards = [parcel.release for parcel in packed.values()]
        works = link.post(posts)
        arriving.update((hop.bucket, work) for hop, work in zip(receives, works, strict=False))
        flying.append((works, afterwards))
    while flying:
        _land(*flying.popleft())


class _Done:
    def wait(self) -> None:
        """Nothing is under way."""


_DONE = _Done()


def _land(works: Sequence[Work], afterwards: Sequence[Callable[[], None]]) -> None:
    """Wait for a round's messages, then give its buffers back."""
    for work in works:
        work.wait()
    for release in afterwards:
        release()
