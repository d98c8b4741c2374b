"""The data plane: results stay in the object store of the node that made them, and readers take the rows they need."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray

from twinkle_ray import rows
from twinkle_ray.parcel import Parcel, pack
from twinkle_remote.errors import WorkerDiedError
from twinkle_remote.split import PLAIN

if TYPE_CHECKING:
    from ray import ObjectRef

ARGUMENT_LIMIT = 100 * 1000  # Ray puts larger arguments again for each receiver
RESULT_LIMIT = 16 * 1024  # larger results stay where they were made


class Inline:
    """A small value that travels inside its outcome, pickled, so that only its reader opens it."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return Inline, (self.data,)


@dataclass(frozen=True, slots=True)
class Stored:
    """A value in the object store.

    Attributes:
        ref: The parcel.
        nbytes: Its size.
        owner: Id of the process that put it.
    """

    ref: ObjectRef[Parcel]
    nbytes: int
    owner: str

    def __reduce__(self) -> tuple[Any, ...]:
        return Stored, (self.ref, self.nbytes, self.owner)


class RayStore:
    """A `Store` over Ray's object store."""

    def __init__(self) -> None:
        self._id = ray.get_runtime_context().get_worker_id()

    def put(self, value: object) -> tuple[object, int] | None:
        """Store a large array or tensor once for many readers; None for smaller ones."""
        if _size(value) < ARGUMENT_LIMIT:
            return None
        return self._stored(pack(rows.fold(value)))

    def get(self, ref: object, start: int | None = None, stop: int | None = None) -> tuple[Any, int]:
        """A stored value, or rows [start, stop) of it, and the bytes that came from outside of this process."""
        if isinstance(ref, Inline):
            value = Parcel(ref.data).open()
            return rows.unfold(value, start, stop)[0], len(ref.data)
        if not isinstance(ref, Stored):
            return rows.unfold(ref, start, stop)[0], 0
        try:
            parcel = ray.get(ref.ref)
        except (ray.exceptions.ObjectLostError, ray.exceptions.RayActorError) as error:
            raise WorkerDiedError(
                f"a result of {ref.nbytes} bytes is gone, because the worker or the node that made it is gone"
            ) from error
        value, size = rows.unfold(parcel.open(), start, stop)
        return value, 0 if ref.owner == self._id else size

    def keep(self, value: object) -> tuple[object, int]:
        """Keep a result: plain scalars as they are, small values inside the outcome, others in this node's store."""
        if type(value) in PLAIN and sys.getsizeof(value) < RESULT_LIMIT:
            return value, 0
        parcel = pack(rows.fold(value))
        if not parcel.buffers and not parcel.refs and len(parcel.head) < RESULT_LIMIT:
            return Inline(parcel.head), len(parcel.head)
        return self._stored(parcel)

    def _stored(self, parcel: Parcel) -> tuple[Stored, int]:
        size = parcel.nbytes
        return Stored(ray.put(parcel), size, self._id), size


def _size(value: object) -> int:
    nbytes = getattr(value, "nbytes", 0)
    return nbytes if isinstance(nbytes, int) else 0
