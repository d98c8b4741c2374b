"""Exceptions keep type, fields, notes and cause, whatever their constructor takes, here and pickled."""

from __future__ import annotations

import dataclasses
import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.remote.failures.errors import FieldsError, LockedError, NeedyError

from twinkle_mesh import DeviceGroup
from twinkle_remote import RemoteCallError, get, on, remote_class, remote_function, session
from twinkle_remote.failures.travel import combined_error, error_to_bytes
from twinkle_remote.protocol.messages import exception_of

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    queue: int


@dataclasses.dataclass(kw_only=True)
class KeywordOnlyError(Exception):
    queue: int


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
    "keyword": lambda: KeywordOnlyError(queue=7),
    "other": lambda: OtherArgumentsError(1, 2, queue=7),
    "args": lambda: OwnArgsError(7),
    "refuses": lambda: RefusesAttributesError("text"),
    "new": lambda: OwnNewError(queue=7),
    "reduces": lambda: ReducesError(7),
    "group": lambda: ExceptionGroup("both", [FrozenError(7), KeyError(1)]),
    "own group": lambda: OwnGroup("both", [OSError(7), KeyError(1)], 7),
    "needy": lambda: NeedyError(7, detail="why"),
    "system": lambda: FileNotFoundError(2, "none", "file"),
    "unicode": lambda: UnicodeDecodeError("utf8", b"x", 0, 1, "reason"),
}
FIELDS = ("queue", "detail", "message", "errno", "filename", "object", "start", "exceptions")


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
    if name not in ("frozen", "refuses"):
        error.add_note("note")
    travelled = exception_of(error_to_bytes(error))
    check(travelled, KINDS[name]())
    for original in (error, travelled):
        both = combined_error(original, "told", ())
        check(both, KINDS[name]())
        assert str(both) == "told"
        check(pickle.loads(pickle.dumps(both)), KINDS[name]())
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
            lambda name: on("one").create(Failing, name),
        ]
        for name in KINDS:
            for way in ways:
                with pytest.raises(RemoteCallError) as caught:
                    way(name)
                check(caught.value, KINDS[name]())
                assert repr(caught.value.__cause__) == repr(OSError("cause"))


def journey(error: BaseException) -> Any:
    return exception_of(error_to_bytes(error))


@pytest.mark.parametrize("error", [NeedyError(7, detail="why"), FieldsError("bias"), LockedError("held")])
def test_what_went_through_two_calls_travels_as_well(error: Exception) -> None:
    outer = journey(combined_error(journey(error), "told", ()))
    assert isinstance(outer, type(error)) and isinstance(outer, RemoteCallError) and str(outer) == "told"
    assert repr(outer.args[:1]) == repr(error.args[:1])
    names = {"detail": "why", "field": "bias", "name": "held"}
    assert all(getattr(outer, name) == value for name, value in names.items() if hasattr(error, name))


def test_an_attribute_that_does_not_pickle_stays_behind_and_a_text_stands_for_such_an_argument() -> None:
    error = journey(LockedError("held"))
    assert not hasattr(error, "lock") and "lock" in error.args[1]


def test_a_type_that_cannot_travel_gives_nothing() -> None:
    class LocalError(Exception):
        pass

    assert error_to_bytes(LocalError("x")) == b""
    assert error_to_bytes(ExceptionGroup("several", [LocalError("x")])) == b""
    assert isinstance(journey(ValueError(threading.Lock)), ValueError)


def test_a_chain_of_causes_ends_and_so_does_one_in_a_circle() -> None:
    first = OtherArgumentsError(1, 2, queue=0)
    last: BaseException = first
    for number in range(1, 60):
        last.__cause__ = OtherArgumentsError(1, 2, queue=number)
        last = last.__cause__
    last.__cause__ = first
    found, queues = journey(first), []
    while found is not None:
        queues.append(found.queue)
        found = found.__cause__
    assert queues == list(range(9))
