"""The data plane: a result stays in the object store of its worker's node, and readers take the rows that they need."""

from __future__ import annotations

import itertools
import math
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray

from twinkle_ray.objects import chunks as rows
from twinkle_ray.objects.pickling import Pickled, pack
from twinkle_ray.objects.segments import GoneError, Placed, place
from twinkle_remote import rows as values
from twinkle_remote.errors import StoreTimeoutError, TwinkleError, WorkerDiedError

if TYPE_CHECKING:
    from ray import ObjectRef

    from twinkle_remote.protocol import Columns, Rows

ARGUMENT_LIMIT = 100 * 1000  # bytes; Ray stores a larger argument once for each receiver
_HEAD_LIMIT = 2 * 1024  # bytes; a larger head of a value in a segment is read from the store
RESULT_LIMIT = 16 * 1024  # bytes; larger results stay on the node of their worker
EAGER_LIMIT = 90 * 1000  # bytes; the same where the caller reads them at once: Ray sends as much with a reply

_ASKS = 10.0  # seconds after which a reader that waits asks whether the node is there


class Inline:
    """A small pickled value that travels inside its outcome; only its reader opens it."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return Inline, (self.data,)


@dataclass(frozen=True, slots=True)
class Stored:
    """A value in the object store of a node.

    Attributes:
        refs: The pickled value, or pieces of it.
        bounds: First row of each piece, and the number of rows at the end; empty where it lies in one.
        nbytes: Its size.
        node: Id of the node.
        maker: Id of the process that stored it.
        label: Label of that process, for messages.
        placed: What the ref holds, where that is small and the buffers lie in a segment.
    """

    refs: tuple[ObjectRef[Pickled | Placed], ...]
    bounds: tuple[int, ...]
    nbytes: int
    node: str
    maker: str
    label: str
    placed: Placed | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Stored, (self.refs, self.bounds, self.nbytes, self.node, self.maker, self.label, self.placed)


class StoreFullError(TwinkleError):
    """A value fits neither into the object store nor onto the disk behind it."""


class RayStore:
    """A `Store` over Ray's object store.

    Attributes:
        cuts: Large values are stored in pieces by rows, because the session has several nodes: Ray moves the pieces
            that a node's readers need, and each of them once.

    Args:
        label: Label of this process, for errors of readers.
    """

    def __init__(self, label: str = "the driver") -> None:
        context = ray.get_runtime_context()
        self._label = label
        self._node, self._id = context.get_node_id(), context.get_worker_id()
        self.cuts = False

    def put(self, value: object) -> tuple[object, int] | None:
        """Store a large array or tensor once for many readers; None for smaller ones."""
        if values.size_in_bytes(value) < ARGUMENT_LIMIT:
            return None
        return self._stored(rows.fold(value))

    def get(
        self, ref: object, numbers: Rows | None = None, columns: Columns | None = None, timeout: float | None = None
    ) -> tuple[Any, int]:
        """A stored value, or some of its rows and columns, and the bytes that came from outside of this process.

        Raises:
            StoreTimeoutError: The time is over.
            WorkerDiedError: The process that held the value has ended, or its node is lost.
        """
        if isinstance(ref, Inline):
            return rows.unfold(Pickled(ref.data).open(), numbers, columns)[0], len(ref.data)
        if not isinstance(ref, Stored):
            return rows.unfold(ref, numbers, columns)[0], 0
        try:
            value, size = self._read(ref, numbers, columns, None if timeout is None else time.monotonic() + timeout)
        except ray.exceptions.GetTimeoutError:
            raise StoreTimeoutError(
                f"{ref.nbytes} bytes of {ref.label} did not arrive: its node does not answer, or they are more than "
                "the network carries in that time"
            ) from None
        except (ray.exceptions.ObjectLostError, ray.exceptions.RayActorError, GoneError) as error:
            raise WorkerDiedError(
                f"{ref.nbytes} bytes of {ref.label} are gone, because it or its node is: {type(error).__name__}"
            ) from error
        return value, 0 if ref.maker == self._id else size

    def keep(self, value: object, *, eager: bool = False) -> tuple[object, int]:
        """Keep a result: plain scalars as they are, small values inside the outcome, others in this node's store.

        Args:
            value: The result.
            eager: As in `Store.keep`.

        Raises:
            MemoryError: It was too large to be pickled.
            TypeError: It cannot be pickled.
        """
        if type(value) in values.PLAIN and sys.getsizeof(value) < RESULT_LIMIT:
            return value, 0
        limit = EAGER_LIMIT if eager else RESULT_LIMIT
        try:
            form = value if eager else rows.fold(value)
            pickled = pack(form)
        except TwinkleError:  # a lazy result inside it has failed
            raise
        except MemoryError as error:
            raise MemoryError(
                f"the result, a {type(value).__name__}, was not sent, because memory ran out {error}"
            ) from error
        except Exception as error:  # whatever a value's own pickling raises
            raise TypeError(f"the result, a {type(value).__name__}, cannot be sent: {error}") from error
        if not pickled.buffers and not pickled.refs and len(pickled.head) < limit:
            return Inline(pickled.head), len(pickled.head)
        return self._stored(form, pickled)

    def outlives_worker(self, payload: object) -> bool:
        """Whether a payload can still be read when its worker has ended: small values travel inside the outcome."""
        return not isinstance(payload, Stored)

    def _stored(self, form: object, pickled: Pickled | None = None) -> tuple[Stored, int]:
        pickled = pickled or pack(form)
        size, here = pickled.nbytes, (self._node, self._id, self._label)
        try:
            if self.cuts and len(bounds := rows.piece_bounds(form, size)) > 2:
                pieces = [put(pack(rows.cut(form, *ends))) for ends in itertools.pairwise(bounds)]
                return Stored(tuple(pieces), bounds, size, *here), size
            found = place(pickled)
            if found is not None:
                ref, placed = found
                small = not placed.refs and len(placed.head) < _HEAD_LIMIT
                return Stored((ref,), (), size, *here, placed if small else None), size
            return Stored((put(pickled),), (), size, *here), size
        except (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError) as error:
            raise StoreFullError(f"no room for {size} bytes of {self._label}: {error}") from error

    def _read(
        self, stored: Stored, numbers: Rows | None, columns: Columns | None, until: float | None
    ) -> tuple[Any, int]:
        far = stored.node != self._node
        if not stored.bounds:
            whole = stored.placed or _got(stored.refs[0], until, stored.node)
            if far and isinstance(whole, Placed):
                raise GoneError("it lies in the memory of its host, because the session had one node when it was made")
            return _opened(whole, numbers, columns, whole=far)
        wanted = range(stored.bounds[-1]) if numbers is None else numbers
        parts, order, size = [], list[int](), 0
        for index, own, places in rows.pieces_of(wanted, stored.bounds):
            part, opened = _opened(_got(stored.refs[index], until, stored.node), own, columns, whole=far)
            parts.append(part)
            order += places
            size += opened
        return rows.joined(parts, order), size


def _got(ref: ObjectRef[Any], until: float | None, node: str) -> Any:
    """Wait for a value of Ray's store, until a time on the monotonic clock, or until its node is known to be lost.

    Ray tells a reader of a host that was cut off after 140 s; its list of nodes has it after the health check.
    """
    while True:
        left = math.inf if until is None else max(0.0, until - time.monotonic())
        try:
            return ray.get(ref, timeout=min(left, _ASKS))
        except ray.exceptions.GetTimeoutError:
            if left <= _ASKS:
                raise
            nodes = ray.nodes()  # type: ignore[no-untyped-call]  # Ray's own gap
            if not any(each["Alive"] and each["NodeID"] == node for each in nodes):
                raise GoneError("its node is lost") from None


def put(pickled: Pickled) -> ObjectRef[Any]:
    """Put a pickled value into this node's object store."""
    return ray.put(pickled)


def _opened(
    pickled: Pickled | Placed, numbers: Rows | None, columns: Columns | None, *, whole: bool
) -> tuple[Any, int]:
    """A value that came, and the bytes of the pickle with those of the buffers that were opened for it, or of all."""
    value, opened = rows.unfold(pickled.open(), numbers, columns)
    head, buffers = len(pickled.head), pickled.nbytes - len(pickled.head)
    sized = opened or isinstance(value, list) or values.parts_of(value) is not None  # other types may tell no size
    some = sized and not whole and (numbers, columns) != (None, None)
    return value, head + (min(opened, buffers) if some else buffers)
