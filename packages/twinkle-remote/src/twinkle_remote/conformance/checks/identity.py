"""Checks: what is called is the object that was decorated, and an exception of a method is never an end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from twinkle_mesh import DeviceMesh
from twinkle_remote.call.lazy_values.get import get
from twinkle_remote.call.submit import submit
from twinkle_remote.component.decorators import remote_class, remote_function
from twinkle_remote.component.explain_call import explain
from twinkle_remote.conformance.harness import raises
from twinkle_remote.conformance.subjects.aliases import SIGNALS, Aliased, Base, Signalling, tagged, unnamed
from twinkle_remote.errors import TwinkleError

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_remote.conformance.harness import Harness

_TWO = DeviceMesh.from_sizes(dp_size=2)


def names_do_not_choose_functions(harness: Harness) -> None:
    """Aliases, overrides, `super`, and wrappers that lose names run what plain Python runs."""
    plain, remote = Aliased(), harness.build(Aliased, 2, mesh=_TWO)
    rows = ["a", "b", "c"]
    calls: list[Callable[[Aliased], Any]] = [
        lambda one: one.update(rows),
        lambda one: cast("Any", one).brief(rows),
        lambda one: one.score(rows),
        lambda one: one.again(rows),
        lambda one: one.twice(rows),
        lambda one: one.plain(rows),
        lambda one: cast("Any", one).tag(rows, tag="t"),
    ]
    for call in calls:
        assert get(call(remote)) == call(plain)
    assert "Aliased.update" in str(explain(remote.update, rows))


def a_base_is_called_by_name(harness: Harness) -> None:
    """`Base.method(handle)` runs the base's method, though the class overrides it."""
    plain, remote = Aliased(), harness.build(Aliased, 2, mesh=_TWO)
    assert get(Base.score(remote, ["a", "b"])) == Base.score(plain, ["a", "b"])
    assert get(Base.again(remote, ["a", "b"])) == Base.again(plain, ["a", "b"])
    with raises(TypeError, "no attribute of Aliased"):
        Signalling.plain(cast("Any", remote), "stop")


def a_decorator_above_is_refused(harness: Harness) -> None:
    """With `functools.wraps` or without: it would run twice, or not at all."""
    decorators: tuple[Any, ...] = (tagged, unnamed, staticmethod)
    for decorator in decorators:
        with raises(TypeError, "above @remote_function()"):

            @remote_class()
            class Decorated:
                score = decorator(remote_function(dispatch="all")(Aliased.step))


def no_exception_is_an_end(harness: Harness) -> None:
    """StopIteration, StopAsyncIteration, GeneratorExit, CancelledError and SystemExit of a method are failures."""
    remote = harness.build(Signalling, 1)
    for name in SIGNALS:
        for call in (submit(remote.coroutine, name), submit(remote.plain, name)) if _raises(harness, name) else ():
            with raises(TwinkleError):
                get(call)
        assert get(remote.ping()) == "here"


def loops_do_not_end_by_failures(harness: Harness) -> None:
    """A loop over a generator raises where the generator fails, and where its argument has failed."""
    remote = harness.build(Signalling, 1)
    for name in ("stop", "async stop"):
        taken: list[int] = []
        with raises(Exception, "StopIteration" if name == "stop" else "StopAsyncIteration"):
            taken.extend(get(item) for item in submit(remote.items, name))
        with raises(Exception, "StopIteration" if name == "stop" else "StopAsyncIteration"):
            asyncio.run(_all_of(remote, name, taken))
        assert taken == [1, 1]
        with raises(Exception, "signal"):
            for _ in submit(remote.count, cast("Any", submit(remote.plain, name))):
                raise AssertionError("an item of a failed argument")
    assert get(remote.ping()) == "here"


async def _all_of(remote: Signalling, name: str, taken: list[int]) -> None:
    async for item in submit(remote.async_items, name):
        taken.append(get(item))


def _raises(harness: Harness, name: str) -> bool:
    """Whether the exception leaves a method of this backend: in the caller's process some are the caller's own."""
    return not harness.in_process or issubclass(SIGNALS[name], Exception)


CHECKS = (
    names_do_not_choose_functions,
    a_base_is_called_by_name,
    a_decorator_above_is_refused,
    no_exception_is_an_end,
    loops_do_not_end_by_failures,
)
