"""The rounds of a transfer over a link, for one process."""

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
    """The bytes of a bucket at its source, and a function that gives the buffer back."""

    buffer: Tensor
    release: Callable[[], None]


class BufferPool:
    """Buffers for packing; each is used again after its messages are through."""

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
    """Run this process's hops, with `depth` rounds in flight.

    Args:
        link: To the other processes.
        rounds: The hops of this process.
        process: Its rank in the link's group.
        outgoing: Gives the bytes of a bucket of this process.
        staging: The buffer of each bucket that this process receives, or forwards.
        depth: Most rounds under way at once; it bounds the memory for packing.
    """
    in_flight: deque[tuple[Sequence[Work], Sequence[Callable[[], None]]]] = deque()
    arriving: dict[int, Work] = {}
    for hops in rounds:
        while len(in_flight) >= depth:
            _finish(*in_flight.popleft())
        receives = [hop for hop in hops if hop.receiver == process]
        sends = [hop for hop in hops if hop.sender == process]
        messages = [LinkMessage(hop.sender, hop.bucket, staging[hop.bucket], receive=True) for hop in receives]
        packed: dict[int, Outgoing] = {}
        for hop in sends:
            if hop.forward:
                arriving.pop(hop.bucket, _DONE).wait()
                messages.append(LinkMessage(hop.receiver, hop.bucket, staging[hop.bucket], receive=False))
            else:
                if hop.bucket not in packed:
                    packed[hop.bucket] = outgoing(hop.bucket)
                messages.append(LinkMessage(hop.receiver, hop.bucket, packed[hop.bucket].buffer, receive=False))
        releases = [bucket.release for bucket in packed.values()]
        works = link.post(messages)
        arriving.update((hop.bucket, work) for hop, work in zip(receives, works, strict=False))
        in_flight.append((works, releases))
    while in_flight:
        _finish(*in_flight.popleft())


class _Done:
    def wait(self) -> None:
        """Return at once: no message is under way."""


_DONE = _Done()


def _finish(works: Sequence[Work], releases: Sequence[Callable[[], None]]) -> None:
    """Wait for a round's messages, then give its buffers back."""
    for work in works:
        work.wait()
    for release in releases:
        release()
