"""Tasks and outcomes as bytes: what every call sends and every answer carries, in the fewest steps."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import ray

from twinkle_ray.parcel import Parcel, pack
from twinkle_ray.store import ARGUMENT_LIMIT, Inline, Stored
from twinkle_remote.protocol import Outcome, Task

if TYPE_CHECKING:
    from ray import ObjectRef

Wire = bytes | Parcel


def task_to_wire(task: Task) -> Wire | ObjectRef[Parcel]:
    """What is passed to the actors of a task: bytes where nothing stands beside them; a ref where it is large."""
    told = (
        task.kind,
        task.instance,
        task.name,
        task.target,
        task.args,
        task.kwargs,
        task.slots,
        task.share,
        task.total,
        task.rows,
        task.uneven,
        task.lists_only,
        task.handed,
        task.mesh,
    )
    parcel = pack(told)
    if parcel.nbytes > ARGUMENT_LIMIT * 9 // 10:
        return ray.put(parcel)
    if parcel.buffers or parcel.refs:
        return parcel
    head: bytes = parcel.head
    return head


def task_from_wire(wire: Wire) -> Task:
    """The task of what an actor was passed."""
    return Task(*(Parcel(wire) if isinstance(wire, bytes) else wire).open())


def outcome_to_wire(outcome: Outcome) -> bytes | tuple[Any, ...]:
    """What an actor returns: bytes, unless a ref is among it, which Ray has to see."""
    payload = outcome.payload
    told = (
        outcome.rank,
        payload.data if isinstance(payload, Inline) else payload,
        outcome.rows,
        outcome.is_list,
        outcome.rows_given,
        outcome.total,
        outcome.failure,
        outcome.ended,
        outcome.produced,
        outcome.fetched,
        outcome.started,
        outcome.seconds,
        outcome.fetch_seconds,
        isinstance(payload, Inline),
    )
    return told if isinstance(payload, Stored) else pickle.dumps(told, protocol=5)


def outcome_from_wire(wire: bytes | tuple[Any, ...]) -> Outcome:
    """The outcome of what an actor returned."""
    *told, inline = pickle.loads(wire) if isinstance(wire, bytes) else wire
    if inline:
        told[1] = Inline(told[1])
    return Outcome(*told)
