"""The wire form of tasks: small ones are bytes, and come back as they were."""

from __future__ import annotations

from twinkle_ray.objects.wire import task_from_wire, task_to_wire
from twinkle_remote.protocol import Task

ROWS = [{"id": n, "ids": [n] * 4, "more": {"x": (n, None, {1, 2}, b"a", bytearray(b"b"))}} for n in range(40)]


def test_plain_rows_travel_as_bytes() -> None:
    task = Task("method", "i", "Echo.same", "same", (ROWS,), share=(1, 2))
    wire, size = task_to_wire(task)
    assert isinstance(wire, bytes) and size == len(wire)
    assert task_from_wire(wire) == task
