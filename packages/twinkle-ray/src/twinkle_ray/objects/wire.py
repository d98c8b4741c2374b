"""The wire form of tasks and outcomes, which every call sends and every answer carries."""

from __future__ import annotations

import pickle
from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from twinkle_ray.objects.object_store import ARGUMENT_LIMIT, RESULT_LIMIT, Stored, put
from twinkle_ray.objects.pickling import Pickled, pack
from twinkle_remote.protocol import Outcome, Task
from twinkle_remote.rows import PLAIN

if TYPE_CHECKING:
    from ray import ObjectRef

Wire = bytes | Pickled
UNREAD = "(a task that was not read)"  # the method of a failure before the task is known
_FEW_ROWS = 64
_of_task = attrgetter(*(field.name for field in fields(Task)))
_of_outcome = attrgetter(*(field.name for field in fields(Outcome)))


def task_to_wire(task: Task) -> tuple[Wire | ObjectRef[Pickled], int]:
    """Return what is passed to the actors of a task: bytes; with buffers or refs, a `Pickled`; a ref if it is large.

    Returns:
        It, and its size in bytes.
    """
    parts = _of_task(task)
    if task.kind == "method" and all(map(_is_plain, (*task.args, *task.kwargs.values()))):
        data = pickle.dumps(parts, protocol=5)  # plain values do not need `pack`, which takes six times as long
        if len(data) < RESULT_LIMIT:
            return data, len(data)
    pickled = pack(parts)
    nbytes = pickled.nbytes
    if nbytes > ARGUMENT_LIMIT * 9 // 10:
        return put(pickled), nbytes
    if pickled.buffers or pickled.refs:
        return pickled, nbytes
    head: bytes = pickled.head
    return head, nbytes


def _is_plain(value: object) -> bool:
    """Whether it is a plain value, or a short list of such: the few rows of one of many ranks."""
    if type(value) is list:
        return len(value) <= _FEW_ROWS and PLAIN.issuperset(map(type, value))
    return type(value) in PLAIN


def unsendable(task: Task) -> str:
    """Name the part of a task that does not pickle."""
    parts: dict[str, object] = {f"the {task.kind}'s target {task.target!r}": task.target}
    parts.update((f"positional argument {index} ({value!r:.80})", value) for index, value in enumerate(task.args))
    parts.update((f"argument {name} ({value!r:.80})", value) for name, value in task.kwargs.items())
    for name, value in parts.items():
        try:
            pack(value)
        except Exception:  # this is the one
            return name
    return "a part of the call"


def task_from_wire(wire: Wire) -> Task:
    """The task of a wire form."""
    return Task(*(Pickled(wire) if isinstance(wire, bytes) else wire).open())


def outcome_to_wire(outcome: Outcome) -> bytes | tuple[Any, ...]:
    """The wire form of an outcome: bytes; a tuple if it holds a ref, which Ray has to see."""
    parts = _of_outcome(outcome)
    return parts if isinstance(outcome.payload, Stored) else pickle.dumps(parts, protocol=5)


def outcome_from_wire(wire: bytes | tuple[Any, ...]) -> Outcome:
    """The outcome of a wire form."""
    return Outcome(*(pickle.loads(wire) if isinstance(wire, bytes) else wire))
