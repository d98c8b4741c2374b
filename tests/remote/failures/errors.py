"""Exceptions of every kind, some with ideas of their own."""

from __future__ import annotations

import threading
from typing import Any

from tests.conformance.subjects import faults


class NeedyError(Exception):
    """An exception whose constructor takes other arguments than its `args`."""

    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(f"code {code}")
        self.code = code
        self.detail = detail


class FieldsError(OSError):
    """An exception of a class written in C, with a constructor of its own."""

    def __init__(self, field: str) -> None:
        super().__init__(2, f"no {field}", "weights.pt")
        self.field = field


class LockedError(ValueError):
    """An exception with a lock in it, and in its arguments."""

    def __init__(self, name: str) -> None:
        super().__init__(name, threading.Lock())
        self.lock = threading.Lock()
        self.name = name


class LiarError(Exception):
    """An exception that unpickles as something else."""

    def __reduce__(self) -> Any:
        return str, ("lie",)


class UnpicklableError(Exception):
    """An exception that does not pickle."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.hold = lambda: None


class MuteError(Exception):
    """An exception whose `__str__` raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def make_error(kind: str) -> BaseException:
    """An exception of a kind."""
    errors: dict[str, BaseException] = {
        "needy": NeedyError(7, detail="why"),
        "fields": FieldsError("bias"),
        "liar": LiarError("truth"),
        "locked": LockedError("held"),
        "needy group": ExceptionGroup("several", [NeedyError(8, detail="inside"), LockedError("too")]),
        "unpicklable": UnpicklableError("cannot travel"),
        "mute": MuteError(),
        "exit": SystemExit(3),
    }
    return errors[kind] if kind in errors else faults.make_error(kind)
