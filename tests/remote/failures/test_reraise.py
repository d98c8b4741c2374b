"""Exceptions of users' kinds keep type, fields, notes and cause, whatever they refuse, here and pickled."""

from __future__ import annotations

import dataclasses
import pickle
from typing import TYPE_CHECKING, Any

import pytest

from twinkle_mesh import DeviceGroup
from twinkle_remote import RemoteCallError, get, on, remote_class, remote_function, session
from twinkle_remote.failures.reraise import combined_error
from twinkle_remote.failures.travel import error_to_bytes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    queue: int


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlotsError(Exception):
    queue: int


@dataclasses.dataclass(kw_only=True)
class KeywordOnlyError(Exception):
    queue: int


class SlotsError(Exception):
    __slots__ = ("queue",)

    def __init__(self, queue: int) -> None:
        self.queue = queue


class OtherArgumentsError(Exception):
    def __init__(self, one: int, two: int, *, queue: int) -> None:
        super().__init__("text")
        self.queue = queue


class OwnArgsError(Exception):
    def __init__(self, queue: int) -> None:
        super().__init__(queue)
        self.queue = queue

    @property
    def args(self) -> Any:  # type: ignore[override]  # what it is about
        return ("fixed",)


class RefusesAttributesError(Exception):
    queue = 7

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


class OwnNewError(Exception):
    def __new__(cls, *, queue: int) -> OwnNewError:
        return super().__new__(cls)

    def __init__(self, *, queue: int) -> None:
        self.queue = queue


class ReducesError(Exception):
    def __init__(self, queue: int) -> None:
        super().__init__()
        self.queue = queue

    def __reduce__(self) -> Any:
        return ReducesError, (self.queue,)


class OwnGroup(ExceptionGroup[Exception]):
    def __new__(cls, message: str, exceptions: list[Exception], queue: int) -> OwnGroup:
        return super().__new__(cls, message, exceptions)

    def __init__(self, message: str, exceptions: list[Exception], queue: int) -> None:
        super().__init__(message, exceptions, queue)  # type: ignore[call-arg]  # as type() itself does
        self.queue = queue


KINDS: dict[str, Callable[[], Exception]] = {
    "frozen": lambda: FrozenError(7),
    "frozen slots": lambda: FrozenSlotsError(7),
    "keyword": lambda: KeywordOnlyError(queue=7),
    "slots": lambda: SlotsError(7),
    "other": lambda: OtherArgumentsError(1, 2, queue=7),
    "args": lambda: OwnArgsError(7),
    "refuses": lambda: RefusesAttributesError("text"),
    "new": lambda: OwnNewError(queue=7),
    "reduces": lambda: ReducesError(7),
    "group": lambda: ExceptionGroup("both", [FrozenError(7), KeyError(1)]),
    "own group": lambda: OwnGroup("both", [OSError(7), KeyError(1)], 7),
    "system": lambda: FileNotFoundError(2, "none", "file"),
    "unicode": lambda: UnicodeDecodeError("utf8", b"x", 0, 1, "reason"),
}
FIELDS = ("queue", "message", "errno", "filename", "object", "start", "exceptions")
WITHOUT_CAUSE = ("reduces", "frozen slots")  # they pickle themselves


def check(found: BaseException | None, wanted: Exception) -> None:
    assert isinstance(found, type(wanted))
    for name in FIELDS:
        if hasattr(wanted, name):
            assert repr(getattr(found, name)) == repr(getattr(wanted, name)), name


def raised(name: str) -> Exception:
    try:
        raise KINDS[name]() from OSError("cause")
    except Exception as error:
        return error


@pytest.mark.parametrize("name", KINDS)
def test_it_travels_and_is_raised_again(name: str) -> None:
    error = raised(name)
    if name not in ("frozen", "frozen slots", "refuses"):
        error.add_note("note")
    travelled = pickle.loads(error_to_bytes(error))
    check(travelled, KINDS[name]())
    for original in (error, travelled):
        both = combined_error(original, "told", ())
        check(both, KINDS[name]())
        assert str(both) == "told"
        if name != "group":  # pickle itself opens no frozen one within
            check(pickle.loads(pickle.dumps(both)), KINDS[name]())
    if name not in WITHOUT_CAUSE:
        assert repr(travelled.__cause__) == repr(OSError("cause"))
        assert getattr(travelled, "__notes__", None) == getattr(error, "__notes__", None)


@remote_class()
class Raising:
    @remote_function(dispatch="all", collect="first")
    def plain(self, name: str) -> None:
        raise raised(name)

    @remote_function(dispatch="all", collect="first")
    async def coroutine(self, name: str) -> None:
        raise raised(name)

    @remote_function(dispatch="all", collect="first")
    async def items(self, name: str) -> AsyncIterator[int]:
        yield 1
        raise raised(name)


@remote_class()
class Failing:
    def __init__(self, name: str) -> None:
        raise raised(name)


def test_every_way_to_raise_keeps_it() -> None:
    with session("threads", groups=[DeviceGroup("one", 1, "CPU")]):
        raising = on("one").create(Raising)
        ways: list[Callable[[str], object]] = [
            lambda name: get(raising.plain(name)),
            lambda name: get(raising.coroutine(name)),
            lambda name: list(map(get, raising.items(name))),  # type: ignore[call-overload]  # typed as a sequence
            lambda name: on("one").create(Failing, name),
        ]
        for name in KINDS:
            for way in ways:
                with pytest.raises(RemoteCallError) as caught:
                    way(name)
                check(caught.value, KINDS[name]())
                assert repr(caught.value.__cause__) == repr(OSError("cause"))
