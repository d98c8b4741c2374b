"""What each of some processes finds; one that fails or ends without an answer is an error of the test, and no hang."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SECONDS = 600.0


def found_by_processes(work: Callable[..., Any], count: int, *arguments: Any) -> list[Any]:
    """What `work(rank, *arguments)` returned in a process of each rank.

    Args:
        work: A function of a module.
        count: Number of processes.
        arguments: Its arguments behind the rank.

    Raises:
        AssertionError: A process has failed.
    """
    context = multiprocessing.get_context("forkserver")
    out = context.Queue()
    started = [context.Process(target=_answer, args=(out, work, rank, *arguments)) for rank in range(count)]
    for process in started:
        process.start()
    try:
        found = _answers(started, out)
        for process in started:
            process.join(60)
    finally:
        for process in started:
            process.kill()
    return [found[rank] for rank in range(count)]


def _answers(started: Sequence[Any], out: Any) -> dict[int, Any]:
    found: dict[int, Any] = {}
    until = time.monotonic() + SECONDS
    while len(found) < len(started):
        ended = [rank for rank, process in enumerate(started) if not process.is_alive() and rank not in found]
        if not out.empty():
            rank, value, error = out.get()
            assert not error, f"rank {rank}: {error}"
            found[rank] = value
            continue
        codes = {rank: started[rank].exitcode for rank in ended}
        assert not codes, f"exit codes of ranks that have not answered: {codes}"
        assert time.monotonic() < until, f"ranks that have answered: {[*found]}"
        time.sleep(0.02)
    return found


def _answer(out: Any, work: Callable[..., Any], rank: int, *arguments: Any) -> None:
    try:
        out.put((rank, work(rank, *arguments), ""))
    except BaseException:
        out.put((rank, None, traceback.format_exc()))
        raise
