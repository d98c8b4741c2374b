"""Inputs that are not there yet: each call waits for them once, for all of its ranks."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import ray

from twinkle_ray.workers.input_gate import start_gate

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_remote.protocol import InputReplies

_Refs = tuple[list[Any], list[Any]]


class WaitingInputs:
    """The answers of the gate of this process, by inputs; the gate starts with the first."""

    def __init__(self) -> None:
        self._gate: Any = None
        self._answers: dict[int, tuple[weakref.ref[InputReplies], ray.ObjectRef[Any]]] = {}
        self._lock = threading.Lock()

    def answer(self, inputs: InputReplies, refs: Callable[[InputReplies], _Refs | None]) -> ray.ObjectRef[Any] | None:
        """Return the reply of the gate that a task waits for instead of its inputs; None if all of them are there.

        Args:
            inputs: The same for all ranks of a call.
            refs: Returns the refs of the inputs and of the watched replies; None if all are there.
        """
        key = id(inputs)
        with self._lock:
            found = self._answers.get(key)
            asked = refs(inputs) if found is None else None
            if found is not None or asked is None:
                return None if found is None else found[1]
            if self._gate is None:
                self._gate = start_gate()
            answer: ray.ObjectRef[Any] = self._gate.first_failure_or_all.remote(*asked)
            self._answers[key] = weakref.ref(inputs, lambda _: self._answers.pop(key, None)), answer
            return answer

    def close(self) -> None:
        """End the gate."""
        gate, self._gate = self._gate, None
        if gate is not None:
            ray.kill(gate, no_restart=True)
