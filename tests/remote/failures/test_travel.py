"""Exceptions as bytes: type, arguments and attributes are those of the original after any number of journeys."""

from __future__ import annotations

import pickle
import threading
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinkle_remote import RemoteCallError
from twinkle_remote.conformance.subjects.faults import FieldsError, LockedError, NeedyError
from twinkle_remote.failures.reraise import combined_error
from twinkle_remote.failures.travel import error_to_bytes

if TYPE_CHECKING:
    from collections.abc import Callable


class CodeError(Exception):
    """Its constructor would write its text twice."""

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code
        self.other: Any = None


class StateError(Exception):
    """Says itself how it is pickled."""

    def __init__(self, left: int, right: int) -> None:
        super().__init__("state")
        self.both = (left, right)

    def __reduce__(self) -> Any:
        return StateError, self.both


class ExtraError(CodeError):
    """Its own way forgets an attribute."""

    def __reduce__(self) -> Any:
        return ExtraError, (self.code,)


class PlacedError(ExtraError):
    """Has a slot; its own way cannot pickle."""

    __slots__ = ("slot",)

    def __reduce__(self) -> Any:
        return (lambda: PlacedError(0)), ()


class CopiedError(Exception):
    """Says by `__reduce_ex__` how it is pickled, with a state."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return CopiedError, ("copied",), {"state": 1}


class PairError(ExceptionGroup):
    """A group with its own way."""

    def __reduce__(self) -> Any:
        return PairError, (self.message, list(self.exceptions))


def journey(error: BaseException) -> Any:
    return pickle.loads(error_to_bytes(error))


@pytest.mark.slow
@given(args=st.lists(st.one_of(st.integers(), st.text(), st.none(), st.binary())), code=st.integers())
def test_arguments_and_attributes_are_the_originals(args: list[Any], code: int) -> None:
    error = CodeError(code)
    error.args, error.other = tuple(args), args
    for _ in range(3):
        error = journey(error)
        assert type(error) is CodeError and error.args == tuple(args) and (error.code, error.other) == (code, args)


def test_the_text_is_not_written_twice() -> None:
    assert journey(CodeError(7)).args == ("code 7",) and journey(StateError(1, 2)).both == (1, 2)


@pytest.mark.parametrize("error", [NeedyError(7, detail="why"), FieldsError("bias"), LockedError("held")])
def test_what_went_through_two_calls_travels_as_well(error: Exception) -> None:
    outer = journey(combined_error(journey(error), "told", ()))
    assert isinstance(outer, type(error)) and isinstance(outer, RemoteCallError) and str(outer) == "told"
    assert repr(outer.args[:1]) == repr(error.args[:1])
    names = {"detail": "why", "field": "bias", "name": "held"}
    assert all(getattr(outer, name) == value for name, value in names.items() if hasattr(error, name))


def test_what_cannot_travel_is_left_behind_or_told() -> None:
    error = journey(LockedError("held"))
    assert not hasattr(error, "lock") and "lock" in error.args[1]


def test_exceptions_in_a_circle_travel_without_it() -> None:
    first, second = CodeError(1), CodeError(2)
    first.other, second.other = second, first
    found = journey(first)
    assert found.code == 1 and found.other.code == 2 and not hasattr(found.other, "other")
    alone = CodeError(3)
    alone.other = [alone]
    assert journey(alone).code == 3


def test_a_type_that_cannot_travel_gives_nothing() -> None:
    class LocalError(Exception):
        pass

    assert error_to_bytes(LocalError("x")) == b""
    assert error_to_bytes(ExceptionGroup("several", [LocalError("x")])) == b""
    assert isinstance(journey(ValueError(threading.Lock)), ValueError)


MAKERS: list[Callable[[], Exception]] = [
    lambda: ValueError("plain"),
    lambda: CodeError(7),
    lambda: StateError(1, 2),
    lambda: ExtraError(7),
    lambda: PlacedError(7),
    lambda: CopiedError("given"),
    lambda: PairError("pair", [ValueError("one"), ExtraError(2)]),
    lambda: NeedyError(7, detail="why"),
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("inner", [MAKERS[0], MAKERS[3], MAKERS[5]])
@pytest.mark.parametrize("explicit", [True, False])
def test_notes_attributes_and_what_it_came_from_arrive(
    make: Callable[[], Exception], inner: Callable[[], Exception], explicit: bool
) -> None:
    error, before = make(), inner()
    for one in (error, before):
        cast("Any", one).later = [type(one).__name__]
        one.add_note("where it was")
    try:
        try:
            raise before
        except Exception as caught:
            raise error from (caught if explicit else None)
    except Exception as caught:
        found = journey(journey(caught))
    for here, there in ((error, found), (before, found.__context__)):
        assert type(there) is type(here) and cast("Any", there).later == [type(here).__name__]
        assert there.__notes__ == ["where it was"]
        assert {name: repr(value) for name, value in vars(here).items()} == {
            name: repr(value) for name, value in vars(there).items() if name != "state"
        }
    assert (found.__cause__ is found.__context__) == explicit and found.__suppress_context__


def test_a_slot_arrives_with_an_exception_that_says_itself_how_it_pickles() -> None:
    error: Any = PlacedError(7)
    error.slot = 9
    assert journey(error).slot == 9 and journey(error).code == 7


def test_long_chains_end() -> None:
    error: Exception = ExtraError(0)
    for number in range(60):
        try:
            try:
                raise error
            except Exception:
                raise ExtraError(number)  # noqa: B904 - the context is what is meant
        except Exception as caught:
            error = caught
    found = journey(error)
    assert (found.code, found.__context__.code, found.__context__.__context__.code) == (59, 58, 57)


class Held:
    """What a worker holds, which no caller asked for."""

    def __reduce__(self) -> Any:
        raise AssertionError("it was to stay")


def _raised(statement: str, cause: bool) -> BaseException:
    try:
        try:
            raise KeyError("first")
        except KeyError:
            if cause:
                exec(statement, {"held": Held()})
        exec(statement, {"held": Held()})
    except Exception as error:
        return error
    raise AssertionError


@pytest.mark.parametrize("cause", [True, False])
@pytest.mark.parametrize(("statement", "name"), [("held.weights", "weights"), ("weights", "weights")])
def test_a_name_that_was_not_found_arrives_and_the_object_stays(statement: str, name: str, cause: bool) -> None:
    error = _raised(statement, cause)
    for _ in range(2):
        error = pickle.loads(error_to_bytes(error))
        assert cast("Any", error).name == name and getattr(error, "obj", None) is None
        error = combined_error(error, "text", ())
    assert isinstance(error, AttributeError | NameError) and cast("Any", error).name == name
