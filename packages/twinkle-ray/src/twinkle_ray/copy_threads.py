"""Copies of many bytes in a few threads: one thread does not keep memory busy, and Ray gives a worker one of torch."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WORTH_THREADS: Final = 8 << 20  # bytes; a smaller copy is done before threads have started
COPY_THREADS: Final = 4


def run_together(tasks: Sequence[Callable[[], object]]) -> None:
    """Run tasks, each but the first on a thread of its own, and wait for all; the first error is raised then."""
    errors: list[Exception] = []

    def run(task: Callable[[], object]) -> None:
        try:
            task()
        except Exception as error:  # raised below
            errors.append(error)

    threads = [Thread(target=run, args=(task,), name="twinkle-copy", daemon=True) for task in tasks[1:]]
    for thread in threads:
        thread.start()
    run(tasks[0])
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
