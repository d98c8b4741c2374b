"""Checks: errors of late calls, results within a time limit, and forked processes."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any, cast

from tests.conformance.checks.failing import gate
from tests.conformance.harness import needs, plain, raises
from tests.conformance.subjects.faults import Faulty

from twinkle_remote import shutdown, submit
from twinkle_remote.errors import CallTimeoutError, NotInitializedError
from twinkle_remote.sessions.current import active

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.conformance.harness import Harness


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
    assert _placed(caught.text) == caught.error.pending == (0, 1, 2, 3), caught.text
    assert list(waiting.result(timeout=30.0)) == ["open"] * 4


def _placed(text: str) -> Sequence[int]:
    """Ranks whose line in a message has text below it."""
    lines = text.splitlines()
    found: list[int] = []
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        words = line.replace(",", "").rstrip(":").split()
        if line.endswith(":") and words[0] in ("rank", "ranks") and below.startswith("    "):
            found += [int(word) for word in words[1:]]
    return tuple(sorted(found))


def values_are_the_same_within_a_limit(harness: Harness) -> None:
    """`result(timeout)` gives what `result()` gives, for small and for large values, and at a timeout of 0 too."""
    faulty = harness.build(Faulty, 2)
    for rows in ([1, 2, 3], list(range(50_000)), [{"text": "x" * 1000, "ids": list(range(100))}] * 500):
        for timeout in (60.0, 0.0):
            lazy = submit(cast("Any", faulty).takes, rows)
            lazy.wait()
            assert lazy.result(timeout=timeout) == plain(lazy) == rows


@needs(apart=True)
def a_forked_process_leaves_the_session_to_its_parent(harness: Harness) -> None:
    """Calls in a forked process are errors that say what to do; the session of the parent goes on."""
    if not hasattr(os, "fork"):
        return
    faulty = harness.build(Faulty, 2)
    with gate(harness) as path:
        lazy = submit(faulty.stalls_for_ever, path, [0, 1])
        assert _in_fork(lambda: _is_refused(lambda: faulty.takes([1])) and _is_refused(lazy.result) and _ends_nothing())
        assert not lazy.done() and active() is not None
    assert lazy.result(timeout=30.0) == "open" and faulty.takes([1, 2]) == [1, 2]


def _is_refused(call: Callable[[], Any]) -> bool:
    try:
        plain(call())
    except NotInitializedError as error:
        return f"was forked from process {os.getppid()}" in str(error) and 'get_context("spawn")' in str(error)
    return False


def _ends_nothing() -> bool:
    shutdown()
    return active() is None


def _in_fork(check: Callable[[], bool]) -> bool:
    """Whether a check holds in a forked process, which is killed when it takes long."""
    pid = os.fork()
    if pid == 0:
        passed = False
        try:
            passed = check()
        finally:
            os._exit(0 if passed else 1)
    until = time.monotonic() + 30.0
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


CHECKS = (
    every_late_rank_tells_where_it_is,
    values_are_the_same_within_a_limit,
    a_forked_process_leaves_the_session_to_its_parent,
)
