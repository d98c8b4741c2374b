"""Checks: errors and deadlines."""

from __future__ import annotations

import re
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from tests.conformance.harness import checks_of, needs, plain, raises
from tests.conformance.subjects.callers import Caller
from tests.conformance.subjects.faults import Faulty, make_error
from tests.conformance.subjects.layouts import FOUR

from twinkle_remote import get, submit
from twinkle_remote.errors import CallTimeoutError, CircularCallError, RemoteCallError, TwinkleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.conformance.harness import Harness


def failures_are_of_the_type_that_was_raised(harness: Harness) -> None:
    """An exception of a worker arrives as a `RemoteCallError` that is also an instance of its type, with its state."""
    faulty = harness.build(Faulty, 2)
    for kind in ("key", "value", "file", "unicode", "group", "stop", "assertion"):
        wanted = make_error(kind)
        with raises(type(wanted)) as caught:
            plain(faulty.raises(kind))
        assert isinstance(caught.error, RemoteCallError | TwinkleError), kind
        for name in ("args", "errno", "filename", "start", "exceptions"):
            assert repr(getattr(caught.error, name, None)) == repr(getattr(wanted, name, None)), (kind, name)


def failures_say_where_and_why(harness: Harness) -> None:
    """Class.method, group, rank of how many with its coordinate, node, pid, the worker's frames, the caller's line."""
    mesh = FOUR["dp2 tp2"]
    faulty = harness.build(Faulty, 4, mesh=mesh)
    workers = harness.workers(4)
    place = " dp=0 tp=0" if harness.in_process else " dp=1 tp=0"
    last = 0 if harness.in_process else 2
    with raises(
        KeyError,
        f"Faulty.raises failed on {harness.groups[4]}[{last}/{workers}{place}]",
        "pid ",
        "KeyError: 'missing'",
        f"called from {__file__}:",
        "faults.py",
        "raise make_error(kind)",
    ) as caught:
        plain(faulty.raises("key", (2, 0) if harness.in_process else (2,)))
    assert "worker.py" not in caught.text and "method.py" not in caught.text, caught.text


@needs(apart=True)
def the_first_failure_surfaces_at_once(harness: Harness) -> None:
    """A failure is raised while other ranks still hang, whatever their rank."""
    faulty = harness.build(Faulty, 2)
    with gate(harness) as path:
        began = time.monotonic()
        with raises(KeyError, "failed on", "[1/2"):
            plain(faulty.fails_while_others_wait(path))
        assert time.monotonic() - began < 10.0


def what_cannot_be_pickled_arrives_or_is_named(harness: Harness) -> None:
    """An argument or a result that cannot be pickled arrives as it is, or is named in an error; the group is usable."""
    faulty = harness.build(Faulty, 2)
    began = time.monotonic()
    refused = _error_of(lambda: _all_true(harness.each(2, plain(faulty.holds([threading.Lock()])))))
    if harness.served:
        assert "Faulty.holds['args'][0][0] is a _thread.lock, which cannot be sent" in refused, refused
    elif refused:
        assert "Faulty.holds: positional argument 0 ([<unlocked _thread.lock" in refused, refused
        assert "cannot be sent: " in refused, refused
    lost = _error_of(lambda: _all_true([harness.each(2, faulty.gives_lock())[-1] is not None]))
    if harness.served and "cannot be sent" in lost:
        place = "" if harness.in_process else "[1]"
        assert f"the result of Faulty.gives_lock{place} is a _thread.lock" in lost, lost
    elif lost:
        assert lost.startswith(f"Faulty.gives_lock failed on {harness.groups[2]}[1/2"), lost
        assert "the result, a lock, cannot be sent: " in lost, lost
    assert time.monotonic() - began < 10.0
    assert faulty.takes([1, 2, 3]) == [1, 2, 3]


def _all_true(values: Sequence[object]) -> None:
    assert all(values), values


def _error_of(call: Callable[[], None]) -> str:
    """The text of the error that a call raises; "" without one."""
    try:
        call()
    except TwinkleError as error:
        return str(error)
    return ""


def constructors_that_fail_say_so(harness: Harness) -> None:
    """A constructor that raises on one rank: the error of that rank, and a group that is usable."""
    rank = 0 if harness.in_process else 2
    with raises(ValueError, f"no start on rank {rank}") as caught:
        harness.build(Faulty, 4, rank)
    if not harness.in_process:
        assert "Faulty.__init__ failed on" in caught.text and isinstance(caught.error, RemoteCallError)
    assert harness.build(Faulty, 4).takes([1]) == [1]


@needs(apart=True)
def deadlines_name_the_ranks_that_are_late(harness: Harness) -> None:
    """`CallTimeoutError`: which ranks are done, which are pending, and where these are; lazy and sync alike."""
    mesh = FOUR["dp4"]
    for name in ("stalls", "stalls_sync"):
        faulty = harness.build(Faulty, 4, mesh=mesh)
        with gate(harness) as path:
            began = time.monotonic()
            with raises(
                CallTimeoutError, "0.3 s", "ranks [0, 2] are done", "[1, 3] are not", "dp=1", "called from"
            ) as caught:
                plain(getattr(faulty, name)(path, [1, 3]))
            assert isinstance(caught.error, CallTimeoutError) and isinstance(caught.error, TimeoutError)
            assert caught.error.done == (0, 2) and caught.error.pending == (1, 3)
            assert time.monotonic() - began < 10.0
        assert faulty.takes([1, 2]) == [1, 2]


@needs(apart=True, served="a call is over with its first failure")
def consumers_fail_with_the_first_of_their_sources(harness: Harness) -> None:
    """A call fails as soon as a rank that makes its argument fails, whether its result is read or not.

    The other ranks are still busy then, and the failed call does not wait for them.
    """
    faulty, sink, last = harness.build(Faulty, 2), harness.build(Faulty, 4), harness.build(Faulty, 1)
    for method in (faulty.each_while_others_wait, faulty.fails_while_others_wait):
        with gate(harness) as path:
            began = time.monotonic()
            source = submit(method, path)
            onward = submit(cast("Any", sink).takes, source)
            with raises(KeyError, "Faulty.takes did not run", "Faulty.", "_while_others_wait failed on", "[1/2"):
                plain(cast("Any", last).takes(onward))
            assert sink.takes([1]) == [1] and last.takes([2]) == [2] and not source.done()
            assert time.monotonic() - began < 10.0
        with raises(KeyError, "did not run"):
            onward.result()


@contextmanager
def gate(harness: Harness) -> Iterator[str]:
    """A path that workers wait for; it exists after the block."""
    path = f"{harness.folder}/gate-{time.monotonic_ns()}"
    try:
        yield path
    finally:
        with open(path, "w"):
            pass


@needs(apart=True)
def a_method_that_waits_for_its_own_rank_fails_at_once(harness: Harness) -> None:
    """The call runs after the method. A coroutine may await it, and other components may be waited for."""
    one, other = harness.build(Caller, 1), harness.build(Caller, 2)
    for way in ("own", "many", "argument", "coroutine"):
        with raises(CircularCallError, "Caller.waits_for_itself waits for Caller.", "runs after it"):
            get(submit(one.waits_for_itself, one, other, way), 60.0)
    assert get(submit(one.waits_for_another, other), 60.0) == 1
    assert get(submit(one.awaits_itself, one), 60.0) == 3


def a_loop_that_drops_its_results_stops_where_it_broke(harness: Harness) -> None:
    """A failure whose result nobody has any more is raised by the next call, with the user's frame."""
    faulty = harness.build(Faulty, 2)
    reached = 0
    with raises(ValueError, "bad value", "Faulty.raises failed on", "in raises", "failing.py") as caught:
        for step in range(1, 8):
            reached = step
            submit(faulty.raises, "value", [0] if step == 3 else [])
            time.sleep(harness.patience)
    assert reached == 4 and isinstance(caught.error, RemoteCallError), reached
    assert "the program's next call raises it" in caught.error.__notes__[0]
    assert plain(faulty.raises("value", [])) == 4


@needs(apart=True, served="the error names one rank, with the stacks of all")
def every_late_rank_tells_where_it_is(harness: Harness) -> None:
    """The error of a late call has the state of each late rank, also of one that waits for its arguments."""
    faulty, sink = harness.build(Faulty, 2), harness.build(Faulty, 4)
    with gate(harness) as path:
        lazy = submit(faulty.stalls_for_ever, path, [0, 1])
        waiting = cast("Any", submit(cast("Any", sink).echoes, lazy))
        with raises(CallTimeoutError, "Faulty.echoes", "is not done after") as caught:
            waiting.result(timeout=harness.patience)
    assert isinstance(caught.error, CallTimeoutError)
    placed = re.findall(r"^ *ranks? ([\d, ]+):\n    ", caught.text, re.MULTILINE)
    named = sorted(int(rank) for ranks in placed for rank in ranks.split(","))
    assert named == list(caught.error.pending) == [0, 1, 2, 3], caught.text
    assert list(waiting.result(timeout=30.0)) == ["open"] * 4


CHECKS = checks_of(globals())
