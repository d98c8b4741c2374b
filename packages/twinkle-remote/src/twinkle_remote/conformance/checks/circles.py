"""Checks: calls that wait for each other in a circle are an error that names it, and others are none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_remote.call.get import get
from twinkle_remote.conformance.harness import needs, raises
from twinkle_remote.conformance.subjects.circles import Node
from twinkle_remote.errors import CircularCallError

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_remote.conformance.harness import Harness

_LONG = 1.6  # seconds: longer than the first looks for a circle


@needs(apart=True)
def circles_are_named(harness: Harness) -> None:
    """Of two, of three, of one, over lazy arguments and over generators."""
    a, b, c = (harness.build(Node, size) for size in (1, 2, 4))
    circles: list[Callable[[], Any]] = [
        lambda: a.chain([b, a]),
        lambda: a.chain([b, c, a]),
        lambda: a.chain([a]),
        lambda: a.through(b, c, a),
        lambda: a.takes(b, a),
    ]
    for call in circles:
        with raises(CircularCallError, "wait for each other in a circle"):
            get(call(), 60.0)
    assert [get(one.hint()) for one in (a, b, c)] == ["hint"] * 3


@needs(apart=True)
def long_waits_are_no_circles(harness: Harness) -> None:
    """Who is called back after it went on, who gives up by itself, and who only takes long."""
    a, b = harness.build(Node, 1), harness.build(Node, 2)
    assert get(a.leaves(b, a, _LONG)) == "left"
    assert get(a.waits(b, _LONG)) == "slept"
    assert get(a.tries(b, a, _LONG)) == "gave up"
    assert get(a.chain([b])) == "hint"


CHECKS = (circles_are_named, long_waits_are_no_circles)
