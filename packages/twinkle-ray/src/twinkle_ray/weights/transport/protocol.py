"""What a transport is: a link that both ends work at once, or a depot where one leaves what the other takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from twinkle_ray.weights.planning.buckets import Bucket


@dataclass(frozen=True, slots=True, eq=False)
class LinkMessage:
    """One message over a link.

    Attributes:
        peer: Rank of the other process in the link's group.
        tag: Tells apart messages between the same two processes.
        buffer: Contiguous bytes to send, or to receive into; left alone until the work is done.
        receive: Direction.
    """

    peer: int
    tag: int
    buffer: Tensor
    receive: bool


class Work(Protocol):
    """A message under way."""

    def wait(self) -> None:
        """Return when the message has been sent or has arrived.

        Raises:
            RuntimeError: If it never will: the peer is gone, the link was aborted, or the deadline passed.
        """


class Link(Protocol):
    """Point-to-point messages between the processes of one generation (Gloo, NCCL)."""

    def post(self, posts: Sequence[LinkMessage]) -> Sequence[Work]:
        """Begin messages; those of one call may run in any order, or as one group."""

    def abort(self) -> None:
        """End every message under way with an error, here and soon at the peers; callable from another thread."""

    def close(self) -> None:
        """Leave the group; nothing may be under way."""


class BlockStore(Protocol):
    """Buckets that stay at their source until a target takes them (process, host memory, CUDA IPC, object store)."""

    def leave(self, bucket: Bucket, blocks: Sequence[Tensor], *, copy: bool) -> object:
        """Leave a bucket's blocks; the handle that comes back can be pickled.

        Args:
            bucket: Which bucket.
            blocks: Its slots' tensors at the source.
            copy: The source may change the blocks before they are taken.
        """

    def take(self, bucket: Bucket, handle: object) -> Sequence[Tensor]:
        """The blocks of a bucket, one tensor for each slot, readable until `clear`."""

    def clear(self) -> None:
        """Drop what was left and taken; called on both ends when a sync is over."""

    def close(self) -> None:
        """Give all memory back."""
