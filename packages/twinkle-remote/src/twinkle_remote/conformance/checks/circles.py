"""Checks: calls that wait for each other in a circle are an error that names it, and others are none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_remote.call.lazy_values.get import get
from twinkle_remote.conformance.harness import needs, raises
from twinkle_remote.conformance.subjects.circles import AsyncNode, Node
from twinkle_remote.errors import CircularCallError

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_remote.conformance.harness import Harness

_DEEP = 6  # calls within calls: more than two components with two places have
LONG = 1.6  # seconds: longer than the first looks for a circle


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
    assert get(a.leaves(b, a, LONG)) == "left"
    assert get(a.waits(b, LONG)) == "slept"
    assert get(a.tries(b, a, LONG)) == "gave up"
    assert get(a.chain([b])) == "hint"


@needs(apart=True)
def circles_of_coroutines_are_named(harness: Harness) -> None:
    """Over places that none frees, over a turn or an event loop that is held up, in tasks of a coroutine's own."""
    a, b = harness.build(AsyncNode, 1), harness.build(AsyncNode, 2)
    circles: list[Callable[[], Any]] = [
        lambda: a.back_and_forth(b, a, _DEEP),
        lambda: a.together(b, a, _DEEP),
        lambda: a.waits(b, a),
        lambda: a.takes(b, a),
        lambda: a.holds_the_loop(b, a),
    ]
    for call in circles:
        with raises(CircularCallError, "wait for each other in a circle"):
            get(call(), 60.0)
    with raises(ExceptionGroup, "TaskGroup"):
        get(a.as_a_group(b, a, _DEEP), 60.0)
    assert [get(one.hint(), 60.0) for one in (a, b)] == ["hint"] * 2


@needs(apart=True)
def long_awaits_are_no_circles(harness: Harness) -> None:
    """Who gives up by itself, who takes long, and who has a place left."""
    c, d = harness.build(AsyncNode, 1), harness.build(AsyncNode, 2)
    assert get(c.gives_up(d, c, LONG, 5), 60.0) == "gave up"
    a, b = harness.build(AsyncNode, 1), harness.build(AsyncNode, 2)
    assert get(a.calls_and_sleeps(b, a, LONG, 1), 60.0) == "hint"
    assert get(a.sleeps(LONG), 60.0) == "slept"


CHECKS = (
    circles_are_named,
    long_waits_are_no_circles,
    circles_of_coroutines_are_named,
    long_awaits_are_no_circles,
)
