"""Attempts to connect to places say what is the matter with each, within the time for all."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

import pytest

from twinkle_ray.cluster.places import connect_all

if TYPE_CHECKING:
    from collections.abc import Iterator


def listening() -> socket.socket:
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    made.listen(64)
    return made


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """A place that answers no attempt to connect: its queue is full."""
    full = socket.socket()
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    waiting = []
    for _ in range(4):
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(full.getsockname())
        waiting.append(one)
    yield full.getsockname()
    for one in (*waiting, full):
        one.close()


def test_places_that_answer_refuse_and_are_silent(silent: tuple[str, int]) -> None:
    with listening() as there, listening() as gone:
        places = {"there": there.getsockname(), "gone": gone.getsockname(), "silent": silent, "none": ("", -1)}
        gone.close()
        began = time.monotonic()
        told = connect_all(places, 0.5)
    assert time.monotonic() - began < 5
    assert told["there"] is None
    assert told["gone"] == "refuses connections: its process ended"
    assert told["silent"] == "does not answer (0.5 s)"
    assert str(told["none"]).startswith("cannot be ")
