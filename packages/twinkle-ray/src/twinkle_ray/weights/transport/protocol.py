"""The two kinds of transport: a link for messages, and a block store in which one end puts what the other gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from twinkle_ray.weights.messages import MemoryFile
    from twinkle_ray.weights.planning.buckets import Bucket
    from twinkle_ray.weights.replacement.parameter_buffer import ParameterBuffer

    Filled: TypeAlias = tuple[Bucket, Sequence[Tensor]]
    """A bucket, and the tensors of its slots."""


@dataclass(frozen=True, slots=True, eq=False)
class LinkMessage:
    """One message over a link.

    Attributes:
        peer: Rank of the other process in the link's group.
        tag: Number of the message between the same two processes.
        buffer: Contiguous bytes to send, or to receive into; nobody else uses them until the work is done.
        receive: Whether this process receives; it sends otherwise.
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
            RuntimeError: If the peer is gone, the link was aborted, or the deadline passed.
        """


class Link(Protocol):
    """Point-to-point messages between the processes of one session (Gloo, NCCL)."""

    def post(self, messages: Sequence[LinkMessage]) -> Sequence[Work]:
        """Start messages; those of one call may run in any order, or as one group."""

    def abort(self) -> None:
        """End every message under way with an error, here and soon at the peers; any thread may call it."""

    def close(self) -> None:
        """Leave the group; no message may be under way."""


class BlockStore(Protocol):
    """Buckets that stay at their source until a target gets them (process, host memory, CUDA IPC, object store)."""

    def begin(self, occupied: frozenset[MemoryFile] | None) -> None:
        """Begin a sync at this end.

        Args:
            occupied: Memory files that must not be written, because tensors of a target live there; None: all.
        """

    def put(self, buckets: Sequence[Filled], *, copy: bool) -> Sequence[object]:
        """Offer the blocks of buckets to their targets.

        Args:
            buckets: Each bucket with its slots' tensors at the source.
            copy: The source may change the blocks before a target has read them.

        Returns:
            A handle for `get` of each bucket, which can be pickled.
        """

    def get(self, bucket: Bucket, handle: object) -> Sequence[Tensor]:
        """The blocks of a bucket, one tensor for each slot, readable until `clear`."""

    def buffers(self) -> Sequence[ParameterBuffer]:
        """Memory in which blocks have arrived, and in which tensors of this rank may live."""

    def clear(self) -> None:
        """Drop the blocks of a sync that is over; both ends call it."""

    def close(self) -> None:
        """Give all memory back."""
