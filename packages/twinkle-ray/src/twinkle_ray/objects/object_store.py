"""The data plane: a result stays in the object store of its worker's node, and readers take the rows that they need."""

from __future__ import annotations

import itertools
import sys
from concurrent import futures
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray

from twinkle_ray.cluster.raylet import check_raylet
from twinkle_ray.objects import chunks as rows
from twinkle_ray.objects.pickling import Pickled, pack
from twinkle_ray.objects.shared_memory.placed import Placed, place
from twinkle_ray.objects.shared_memory.segment_ref import GoneError
from twinkle_ray.objects.time_limit import TooLateError, within
from twinkle_remote import values
from twinkle_remote.errors import StoreTimeoutError, TwinkleError, WorkerDiedError

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from ray import ObjectRef

    from twinkle_ray.cluster.lost_nodes import LostNodes
    from twinkle_ray.cluster.node_probe import NodeProbe
    from twinkle_remote.protocol import Columns, Rows

ARGUMENT_LIMIT = 100 * 1000  # bytes; Ray stores a larger argument once for each receiver
_HEAD_LIMIT = 2 * 1024  # bytes; a larger head of a value in a segment is read from the store
_LOOK_SECONDS = 1.0
_LOOKS_UNTIL_PROBE = 2
RESULT_LIMIT = 16 * 1024  # bytes; larger results stay on the node of their worker
EAGER_LIMIT = 90 * 1000  # bytes; the same where the caller reads them at once: Ray sends as much with a reply


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
        ref: The pickled value.
        nbytes: Its size.
        node: Id of the node.
        maker: Id of the process that stored it.
        label: Label of that process, for messages.
        in_segment: Its buffers lie in a segment of the node, and the ref holds the rest.
        placed: What the ref holds, where that is small and in a segment.
    """

    ref: ObjectRef[Pickled | Placed]
    nbytes: int
    node: str
    maker: str
    label: str
    in_segment: bool = False
    placed: Placed | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        parts = self.ref, self.nbytes, self.node, self.maker, self.label, self.in_segment, self.placed
        return Stored, parts


class StoreFullError(TwinkleError):
    """A value fits neither into the object store nor onto the disk behind it."""


class RayStore:
    """A `Store` over Ray's object store.

    Attributes:
        agent: The agent of a worker's node; None where there is one node, and in the driver.
        agents: In the driver, the agents by node id.
        lost_nodes: The nodes that are lost.

    Args:
        label: Label of this process, for errors of readers.
    """

    def __init__(self, label: str = "the driver") -> None:
        context = ray.get_runtime_context()
        self._label = label
        self._node, self._id = context.get_node_id(), context.get_worker_id()
        self.agent: Any = None
        self.agents: Mapping[str, Any] = {}
        self.lost_nodes: LostNodes | None = None

    def put(self, value: object) -> tuple[object, int] | None:
        """Store a large array or tensor once for many readers; None for smaller ones."""
        if values.size_in_bytes(value) < ARGUMENT_LIMIT:
            return None
        return self._stored(pack(rows.fold(value)))

    def get(
        self, ref: object, start: int | None = None, stop: int | None = None, timeout: float | None = None
    ) -> tuple[Any, int]:
        """A stored value, or rows [start, stop) of it, and the bytes that came from outside of this process.

        Raises:
            StoreTimeoutError: The time is over.
            WorkerDiedError: The process that held the value has ended, or its node is lost.
        """
        return self.pick(ref, None if start is None or stop is None else range(start, stop), None, timeout)

    def pick(
        self, ref: object, numbers: Rows | None, columns: Columns | None, timeout: float | None = None
    ) -> tuple[Any, int]:
        """Rows of a stored value by their numbers, with those of these columns that it has; see `get`."""
        if isinstance(ref, Inline):
            return rows.pick(Pickled(ref.data).open(), numbers, columns)[0], len(ref.data)
        if not isinstance(ref, Stored):
            return rows.pick(ref, numbers, columns)[0], 0
        try:
            value, size = within(timeout, lambda: self._read(ref, numbers, columns))
        except TooLateError:
            raise StoreTimeoutError(
                f"{ref.nbytes} bytes of {ref.label} did not arrive: its process, or the raylet of a node, does not "
                "answer, or they are more than the network carries in that time"
            ) from None
        except (ray.exceptions.ObjectLostError, ray.exceptions.RayActorError, GoneError) as error:
            raise WorkerDiedError(
                f"{ref.nbytes} bytes of {ref.label} are gone, because it or its node is: {type(error).__name__}"
            ) from error
        return value, 0 if ref.maker == self._id else size

    def adjoined(
        self, pieces: Sequence[tuple[object, int | None, int | None]], timeout: float | None = None
    ) -> tuple[Any, int] | None:
        """The rows of several values in segments of this node as one value, without a copy; see `AdjoiningStore`."""
        found: list[tuple[Placed, int | None, int | None]] = []
        foreign = []
        for ref, start, stop in pieces:
            if not isinstance(ref, Stored) or ref.placed is None or ref.node != self._node:
                return None
            found.append((ref.placed, start, stop))
            foreign.append(ref.maker != self._id)
        try:
            joined = rows.adjoined([(placed.open(), start, stop) for placed, start, stop in found])
        except GoneError:  # a read of each says whose it was
            return None
        return None if joined is None else (joined[0], _together(list(itertools.compress(joined[1], foreign))))

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
            pickled = pack(value if eager else rows.fold(value))
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
        return self._stored(pickled)

    def outlives_worker(self, payload: object) -> bool:
        """Whether a payload can still be read when its worker has ended: small values travel inside the outcome."""
        return not isinstance(payload, Stored)

    def _stored(self, pickled: Pickled) -> tuple[Stored, int]:
        size = pickled.nbytes
        check_raylet()
        try:
            found = place(pickled)
            if found is not None:
                ref, placed = found
                small = not placed.refs and len(placed.head) < _HEAD_LIMIT
                return Stored(ref, size, self._node, self._id, self._label, True, placed if small else None), size
            ref = put(pickled)
        except (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError) as error:
            raise StoreFullError(f"no room for {size} bytes of {self._label}: {error}") from error
        return Stored(ref, size, self._node, self._id, self._label), size

    def _read(self, stored: Stored, numbers: Rows | None, columns: Columns | None) -> tuple[Any, int]:
        check_raylet()
        none_registered = values.registered_splitters() is None  # an agent does not have these splitters
        far = stored.node != self._node
        if far and self.agent is not None and none_registered and (numbers is not None or columns is not None):
            try:
                (piece,) = ray.get(self.agent.piece.remote([stored.ref], stored.node, numbers, columns))
                whole = range(len(numbers)) if numbers is not None and columns is None else None
                return _opened(self._fetched(stored, piece), whole, None)
            except ray.exceptions.RayTaskError:  # the agent may not have a class that this process has
                pass
        if far and stored.in_segment:
            try:
                return _opened(self._fetched(stored, self._carried(stored)), numbers, columns)
            except ray.exceptions.RayTaskError:
                self._fetched(stored, stored.ref)  # raises where the process that has put it has ended
                raise
        return _opened(stored.placed or self._fetched(stored, stored.ref), numbers, columns)

    def _carried(self, stored: Stored) -> ObjectRef[Pickled | Placed]:
        """A value in a segment of another node, as Ray carries it here."""
        if self.agent is not None:
            (piece,) = ray.get(self.agent.whole.remote([stored.ref], stored.node))
        elif stored.node in self.agents:
            piece = self.agents[stored.node].unplaced.remote([stored.ref])
        else:
            raise GoneError(f"node {stored.node} has no agent")
        carried: ObjectRef[Pickled | Placed] = piece
        return carried

    def _fetched(self, stored: Stored, ref: ObjectRef[Pickled | Placed]) -> Pickled | Placed:
        """Wait for data of a node for as long as the node is not lost, and can be reached from here."""
        known = self.lost_nodes
        if known is None or stored.node == self._node:
            return ray.get(ref)
        coming = ref.future()  # a thread that Ray never answers would end this process when it leaves Ray
        probe: NodeProbe | None = None
        looks = 0
        try:
            while not futures.wait([coming], _LOOK_SECONDS).done:
                looks += 1
                if looks == _LOOKS_UNTIL_PROBE:
                    probe = _probe(stored.node)
                why = known.lost(stored.node) if known.any_lost() else None
                why = why or (None if probe is None else probe.problem)
                if why is not None:
                    raise WorkerDiedError(f"{stored.nbytes} bytes of {stored.label} cannot be read: {why}")
        finally:
            if probe is not None:
                probe.close()
        pickled: Pickled | Placed = coming.result()
        return pickled


def _probe(node: str) -> NodeProbe:
    from twinkle_ray.cluster.node_probe import NodeProbe  # few workers wait for so long

    return NodeProbe(node)


def put(pickled: Pickled) -> ObjectRef[Any]:
    """Put a pickled value into this node's object store.

    Raises:
        WorkerDiedError: The store has ended.
    """
    check_raylet()
    return ray.put(pickled)


def _opened(pickled: Pickled | Placed, numbers: Rows | None, columns: Columns | None) -> tuple[Any, int]:
    """A value that came, and the bytes of the pickle with those of the buffers that were opened for it."""
    value, opened = rows.pick(pickled.open(), numbers, columns)
    head, buffers = len(pickled.head), pickled.nbytes - len(pickled.head)
    by_column = opened.by_column if isinstance(opened, values.ColumnBytes) else None
    whole = (numbers is None and columns is None) or (by_column is None and not opened)  # a type may tell no size
    size = head + (buffers if whole else min(opened, buffers))  # small buffers are in the head
    return value, size if by_column is None else values.ColumnBytes(size, by_column)


def _together(sizes: Sequence[int]) -> int:
    """The bytes of several pieces, by column where they have columns."""
    by_column: dict[Hashable, int] = {}
    for size in sizes:
        for name, nbytes in (size.by_column if isinstance(size, values.ColumnBytes) else {}).items():
            by_column[name] = by_column.get(name, 0) + nbytes
    return values.ColumnBytes(sum(sizes), by_column) if by_column else sum(sizes)
