"""Parts of a program that a forked process does not have for itself: threads of libraries, positions in open files."""

from __future__ import annotations

import io
import re
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final

from twinkle_data.sources.parts import library_of, objects_in

if TYPE_CHECKING:
    from collections.abc import Iterable
    from multiprocessing.context import BaseContext

ADVICE: Final = 'use multiprocessing_context="forkserver" or "spawn"'
_POLARS_THREAD: Final = re.compile(r"polars-\d+")


def is_fork(context: BaseContext) -> bool:
    """Whether a context forks this process."""
    return context.get_start_method() == "fork"


def warn_of_polars(user_code: Iterable[object]) -> None:
    """Warn where forked processes would run polars, whose threads were started here: its queries wait for ever there.

    Args:
        user_code: The objects whose code the processes run.
    """
    if "polars" not in sys.modules or not _polars_has_threads():
        return
    for code in user_code:
        if _uses_polars(code):
            warnings.warn(
                f"{type(code).__name__} uses polars, polars has run in this process, and loader processes are made by "
                f"fork, where polars' threads do not live: its queries wait there for ever. To read it, {ADVICE}, "
                "num_workers=0, or rows without polars, as of frame.to_dicts()",
                RuntimeWarning,
                stacklevel=2,
            )
            return


def warn_of_open_files(user_code: Iterable[object]) -> None:
    """Warn where several forked processes would read an open file: they share its position, and read one another's.

    Args:
        user_code: The objects whose code the processes run.
    """
    for code in user_code:
        for one in objects_in(code):
            if _is_open_file(one):
                warnings.warn(
                    f"{type(code).__name__} holds an open {type(one).__name__}, and loader processes are made by fork: "
                    "they share its position, so rows may be wrong. Open it in the process that reads, at the first "
                    f"sample or in worker_init_fn, or {ADVICE}",
                    RuntimeWarning,
                    stacklevel=2,
                )
                return


def _is_open_file(value: object) -> bool:
    """Whether it is a file with a position that reading moves, or a connection that a fork may not use."""
    kind = type(value)
    if isinstance(value, io.IOBase) and kind.__module__ in ("_io", "io", "tempfile"):
        with suppress(OSError, ValueError):  # it is closed, or stands in memory
            return value.fileno() >= 0 and value.readable() and value.seekable()
        return False
    return (library_of(kind), kind.__name__) in (("h5py", "File"), ("sqlite3", "Connection"))


def _polars_has_threads() -> bool:
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        return True
    for task in tasks.iterdir():
        with suppress(OSError):  # it has ended meanwhile
            if _POLARS_THREAD.fullmatch((task / "comm").read_text().strip()):
                return True
    return False


def _uses_polars(code: object) -> bool:
    """Whether an object holds something of polars, or its code stands in a module that does."""
    for one in objects_in(code):
        if library_of(type(one)) == "polars":
            return True
        function: Any = one.__func__ if isinstance(one, MethodType) else one
        home = function.__module__ if isinstance(function, FunctionType) else type(one).__module__
        module = sys.modules.get(home or "")
        if module is not None and _is_users(home) and _names_polars(vars(module).values()):
            return True
    return False


def _is_users(home: str) -> bool:
    top = home.partition(".")[0]
    return top not in ("twinkle_data", "twinkle_engines", "twinkle", "torch", "datasets") and (
        top == "__main__" or top not in sys.stdlib_module_names
    )


def _names_polars(values: Iterable[object]) -> bool:
    polars = sys.modules["polars"]
    return any(value is polars or library_of(type(value)) == "polars" for value in list(values))
