"""Checks: what is called is the object that was decorated, and an exception of a method is never an end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from tests.conformance.harness import raises
from tests.conformance.subjects.aliases import SIGNALS, Aliased, Signalling, tagged

from twinkle_mesh import DeviceMesh
from twinkle_remote import explain, get, remote_class, remote_function, submit
from twinkle_remote.errors import TwinkleError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.harness import Harness

_TWO = DeviceMesh.from_sizes(dp_size=2)


def names_do_not_choose_functions(harness: Harness) -> None:
    """Aliases, overrides, `super`, and a decorator below run what plain Python runs."""
    plain, remote = Aliased(), harness.build(Aliased, 2, mesh=_TWO)
    rows = ["a", "b", "c"]
    calls: list[Callable[[Aliased], Any]] = [
        lambda one: one.update(rows),
        lambda one: one.score(rows),
        lambda one: one.again(rows),
        lambda one: cast("Any", one).tag(rows, tag="t"),
    ]
    for call in calls:
        assert get(call(remote)) == call(plain)
    assert "Aliased.update" in str(explain(remote.update, rows))


def a_decorator_above_is_refused(harness: Harness) -> None:
    """One that copies our mark, as `functools.wraps` does: it would run twice."""
    decorators: tuple[Any, ...] = (tagged, staticmethod)
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


def _raises(harness: Harness, name: str) -> bool:
    """Whether the exception leaves a method of this backend: in the caller's process some are the caller's own."""
    return not harness.in_process or issubclass(SIGNALS[name], Exception)


CHECKS = (
    names_do_not_choose_functions,
    a_decorator_above_is_refused,
    no_exception_is_an_end,
)
