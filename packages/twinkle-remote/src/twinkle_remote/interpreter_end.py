"""Deletion: what the garbage collector calls while the interpreter ends, or in the moment of a Ctrl-C."""

from __future__ import annotations

import sys
import time
from _thread import start_new_thread
from signal import SIGINT, pthread_kill
from threading import main_thread
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
_SOON_SECONDS = 0.01


def unless_ending(method: Callable[[T], None]) -> Callable[[T], None]:
    """Decorate a `__del__`: it does nothing while the interpreter ends, because everything that it would end is gone.

    The question is asked without a name of a module: the last objects are deleted when those are None, `sys` too.
    Python drops what a `__del__` raises, also a Ctrl-C that comes while it runs: this one comes once more, after it.
    """
    is_ending = sys.is_finalizing

    def delete(self: T) -> None:
        try:
            if not is_ending():
                method(self)
        except KeyboardInterrupt:
            try:
                method(self)
            finally:
                start_new_thread(_interrupt_soon, ())

    return delete


def _interrupt_soon() -> None:
    time.sleep(_SOON_SECONDS)
    ident = main_thread().ident
    if ident is not None:
        pthread_kill(ident, SIGINT)  # it also ends a wait
