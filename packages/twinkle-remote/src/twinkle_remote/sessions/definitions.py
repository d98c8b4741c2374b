"""Reads a program for what it defines: its part under `if __name__ == "__main__"` and its session do not run."""

from __future__ import annotations

import sys
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from twinkle_remote.errors import TwinkleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_reading: ContextVar[bool] = ContextVar("twinkle_reading_definitions", default=False)


class _Enough(BaseException):
    """The program would start its session."""


def end_of_definitions() -> None:
    """End the reading of a program, if this is one: a session starts here."""
    if _reading.get():
        raise _Enough


@contextmanager
def defined_in_main(path: str, arguments: Sequence[str]) -> Iterator[None]:
    """A block in which a program's definitions are in `__main__`, loaded as `multiprocessing` does for children.

    Args:
        path: The program.
        arguments: Those of its command line.

    Raises:
        TwinkleError: It ends or fails before it starts a session.
    """
    module = ModuleType("__mp_main__")
    module.__file__ = path
    here, command = sys.modules["__main__"], sys.argv
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    try:
        sys.argv = [path, *arguments]
        try:
            _read(module, path)
        finally:
            sys.argv = command
        yield
    finally:
        sys.modules["__main__"] = here


def _read(module: ModuleType, path: str) -> None:
    reading = _reading.set(True)
    try:
        with suppress(_Enough):  # raised where the definitions end
            exec(compile(Path(path).read_bytes(), path, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        raise TwinkleError(
            f"{path} is read for what it defines, and that failed: {type(error).__name__}: {error}; what it does "
            'else goes under `if __name__ == "__main__"`'
        ) from error
    finally:
        _reading.reset(reading)
