"""Failures that travel between processes, and errors that are of two types."""

from __future__ import annotations

import builtins
import pickle
from typing import Any

import pytest
from tests.remote.failures.errors import make_error

from twinkle_remote import RemoteCallError, WorkerDiedError
from twinkle_remote.failures.report import raise_failures
from twinkle_remote.failures.travel import capture
from twinkle_remote.protocol import Failure, here

INFO = here("actor", 1, 4)


def travelled(error: BaseException, method: str = "Actor.update") -> Failure:
    """A failure as the driver gets it from another process."""
    failure = capture(error, INFO.label({"dp": 1}), INFO, method, live=False)
    again: Failure = pickle.loads(pickle.dumps(failure))
    return again


def raised(*failures: Failure, name: str = "Actor.update") -> Any:
    """What the caller of a failed call gets."""
    with pytest.raises((RemoteCallError, WorkerDiedError)) as caught:
        raise_failures(name, "actor", failures, "train.py:7")
    return caught.value


@pytest.mark.parametrize("kind", ["key", "value", "file", "unicode", "group", "stop", "assertion"])
def test_errors_are_of_both_types_after_every_journey(kind: str) -> None:
    original = make_error(kind)
    error = raised(travelled(original))
    for _ in range(3):
        assert isinstance(error, type(original)) and isinstance(error, RemoteCallError)
        assert repr(error.args) == repr(original.args) and "Actor.update failed on actor[1/4 dp=1]" in str(error)
        error = pickle.loads(pickle.dumps(error))
    outer = raised(travelled(error, "Trainer.step"), name="Trainer.step")
    assert isinstance(outer, type(original)) and type(outer) is type(error)
    assert "Trainer.step failed on" in str(outer) and "Actor.update failed on" in str(outer)


SPECIAL: dict[type[Exception], tuple[Any, ...]] = {
    UnicodeDecodeError: ("utf8", b"x", 0, 1, "why"),
    UnicodeEncodeError: ("utf8", "x", 0, 1, "why"),
    UnicodeTranslateError: ("x", 0, 1, "why"),
    ExceptionGroup: ("several", [ValueError("one")]),
}


@pytest.mark.parametrize(
    "kind", [kind for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, Exception)]
)
def test_every_built_in_error_is_of_both_types(kind: type[Exception]) -> None:
    error = raised(travelled(kind(*SPECIAL.get(kind, ("why",)))))
    assert isinstance(error, kind) and isinstance(error, RemoteCallError)
    assert isinstance(pickle.loads(pickle.dumps(error)), kind)


def test_state_comes_along() -> None:
    error = raised(travelled(make_error("file")))
    assert (error.errno, error.filename) == (2, "weights.pt")
    error = raised(travelled(make_error("unicode")))
    assert (error.encoding, error.start, error.reason) == ("utf-8", 0, "invalid start byte")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("needy", "NeedyError: code 7"),
        ("liar", "LiarError: truth"),
        ("unpicklable", "UnpicklableError: cannot travel"),
        ("mute", "MuteError: <str() of the exception raised RuntimeError>"),
        ("exit", "SystemExit: 3"),
    ],
)
def test_what_cannot_travel_is_told(kind: str, text: str) -> None:
    failure = travelled(make_error(kind))
    assert text in str(raised(failure))


class StrictError(Exception):
    def __init_subclass__(cls, *, code: int) -> None:
        raise AssertionError("no subclass of this is heard of")


class NewError(Exception):
    def __new__(cls, *, detail: str) -> NewError:
        made = super().__new__(cls)
        made.detail = detail
        return made

    detail: str

    def __init__(self, *, detail: str) -> None:
        super().__init__("text")


def test_types_with_ideas_of_their_own() -> None:
    strict = capture(StrictError("x"), "a[0/1]", INFO, "A.f", live=True)
    assert isinstance(raised(strict), StrictError)
    new = raised(capture(NewError(detail="why"), "a[0/1]", INFO, "A.f", live=True))
    assert isinstance(new, NewError) and new.detail == "why"


def test_the_original_is_there_for_a_debugger() -> None:
    original = KeyError("x")
    error = raised(capture(original, "a[0/1]", INFO, "A.f", live=True))
    assert error.__context__ is original and error.__suppress_context__


def test_the_root_comes_first_and_the_rest_is_folded() -> None:
    root = travelled(ValueError("root"), "Sampler.sample")
    victims = [travelled(RuntimeError("barrier")) for _ in range(3)]
    error = raised(root.as_upstream(), *victims)
    assert isinstance(error, RuntimeError) and "and 3 more" in str(error)
    assert str(error).count("RuntimeError: barrier\n") <= 2
    alone = raised(root.as_upstream())
    assert isinstance(alone, ValueError)
    assert str(alone).startswith(
        "Actor.update did not run, because the call that makes its argument failed: Sampler.sample failed"
    )
    many = raised(root, *(travelled(RuntimeError(f"other {i}")) for i in range(20)))
    assert "and 20 more of group 'actor'" in str(many) and "and 12 other errors" in str(many)


def test_a_dead_worker_says_which() -> None:
    died = Failure(INFO.label(), "node7 pid 12", "ActorDiedError", "killed by SIGKILL", died=True)
    error = raised(died)
    assert isinstance(error, WorkerDiedError) and not isinstance(error, RemoteCallError)
    assert "actor[1/4] died during Actor.update on node7 pid 12: killed by SIGKILL" in str(error)


def test_a_type_that_is_not_importable_here_is_still_told() -> None:
    class LocalError(Exception):
        pass

    failure = travelled(LocalError("x"))
    assert failure.exception() is None and "LocalError: x" in str(raised(failure))
