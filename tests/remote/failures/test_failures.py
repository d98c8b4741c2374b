"""Exceptions of workers: of their own type with fields, notes and cause, on every way; and what is told of them."""

from __future__ import annotations

import builtins
import pickle
import subprocess
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.subjects import faults

from twinkle_mesh import DeviceGroup
from twinkle_remote import RemoteCallError, WorkerDiedError, get, on, remote_class, remote_function, session
from twinkle_remote.failures.report import raise_failures
from twinkle_remote.failures.travel import capture, combined_error, error_to_bytes
from twinkle_remote.protocol import Failure, here
from twinkle_remote.protocol.messages import exception_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

INFO = here("actor", 1, 4)


class NeedyError(Exception):
    """Its constructor takes other arguments than its `args`."""

    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(f"code {code}")
        self.code = code
        self.detail = detail


class FieldsError(OSError):
    """Of a class written in C, with a constructor of its own."""

    def __init__(self, field: str) -> None:
        super().__init__(2, f"no {field}", "weights.pt")
        self.field = field


class LockedError(ValueError):
    """With a lock in it, and in its arguments."""

    def __init__(self, name: str) -> None:
        super().__init__(name, threading.Lock())
        self.lock = threading.Lock()
        self.name = name


KINDS: dict[str, Callable[[], BaseException]] = {
    **{kind: partial(faults.make_error, kind) for kind in ("key", "file", "unicode", "group", "stop")},
    "needy": lambda: NeedyError(7, detail="why"),
    "fields": lambda: FieldsError("bias"),
    "locked": lambda: LockedError("held"),
    "needy group": lambda: ExceptionGroup("both", [NeedyError(7, detail="why"), KeyError(1)]),
}
FIELDS = ("code", "detail", "field", "name", "message", "errno", "filename", "object", "start", "exceptions")


def check(found: Any, kind: str) -> None:
    wanted = KINDS[kind]()
    assert isinstance(found, type(wanted))
    assert repr(found.args[:1]) == repr(wanted.args[:1])
    for name in FIELDS:
        if hasattr(wanted, name):
            assert repr(getattr(found, name)) == repr(getattr(wanted, name)), name


def caused(kind: str) -> BaseException:
    try:
        raise KINDS[kind]() from OSError("cause")
    except Exception as error:
        error.add_note("note")
        return error


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


@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_of_both_types_after_every_journey(kind: str) -> None:
    original = caused(kind)
    found = exception_of(error_to_bytes(original))
    check(found, kind)
    assert repr(found.__cause__) == repr(OSError("cause")) and found.__notes__ == ["note"]
    error = raised(travelled(original))
    for _ in range(3):
        check(error, kind)
        assert isinstance(error, RemoteCallError) and "Actor.update failed on actor[1/4 dp=1]" in str(error)
        error = pickle.loads(pickle.dumps(error))
    outer = raised(travelled(error, "Trainer.step"), name="Trainer.step")
    check(outer, kind)
    assert type(outer) is type(error)
    assert "Trainer.step failed on" in str(outer) and "Actor.update failed on" in str(outer)


SPECIAL: dict[type[Exception], tuple[Any, ...]] = {
    UnicodeDecodeError: ("utf8", b"x", 0, 1, "why"),
    UnicodeEncodeError: ("utf8", "x", 0, 1, "why"),
    UnicodeTranslateError: ("x", 0, 1, "why"),
    ExceptionGroup: ("several", [ValueError("one")]),
}


def test_every_built_in_error_is_of_both_types() -> None:
    kinds = [kind for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    for kind in kinds:
        error = raised(travelled(kind(*SPECIAL.get(kind, ("why",)))))
        assert isinstance(error, kind) and isinstance(error, RemoteCallError)
        assert isinstance(pickle.loads(pickle.dumps(error)), kind)


@remote_class()
class Raising:
    def __init__(self, kind: str = "") -> None:
        if kind:
            raise caused(kind)

    @remote_function(dispatch="all", collect="first")
    def plain(self, kind: str) -> None:
        raise caused(kind)

    @remote_function(dispatch="all", collect="first")
    async def coroutine(self, kind: str) -> None:
        raise caused(kind)


def test_every_way_to_raise_keeps_it() -> None:
    with session("threads", groups=[DeviceGroup("one", 1, "CPU")]):
        raising = on("one").create(Raising)
        ways: list[Callable[[str], object]] = [
            lambda kind: get(raising.plain(kind)),
            lambda kind: get(raising.coroutine(kind)),
            lambda kind: on("one").create(Raising, kind),
        ]
        for kind in KINDS:
            for way in ways[:: 2 if kind == "stop" else 1]:  # a coroutine cannot raise StopIteration
                with pytest.raises(RemoteCallError) as caught:
                    way(kind)
                check(caught.value, kind)
                assert repr(caught.value.__cause__) == repr(OSError("cause"))


def test_what_cannot_travel_stays_behind_and_is_told() -> None:
    class LocalError(Exception):
        pass

    error: Any = exception_of(error_to_bytes(LockedError("held")))
    assert not hasattr(error, "lock") and "lock" in error.args[1]
    for local in (LocalError("x"), ExceptionGroup("several", [LocalError("x")])):
        assert error_to_bytes(local) == b""
    failure = travelled(LocalError("x"))
    assert failure.exception() is None and "LocalError: x" in str(raised(failure))
    assert "SystemExit: 3" in str(raised(travelled(SystemExit(3))))


def test_a_chain_of_causes_ends_and_so_does_one_in_a_circle() -> None:
    first = last = NeedyError(0, detail="")
    for number in range(1, 60):
        last.__cause__ = after = NeedyError(number, detail="")
        last = after
    last.__cause__ = first
    found: Any = exception_of(error_to_bytes(combined_error(first, "told", ())))
    codes = []
    while found is not None:
        codes.append(found.code)
        found = found.__cause__
    assert codes[:5] == list(range(5)) and len(codes) < 20


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


def test_equal_failures_name_some_of_their_ranks() -> None:
    failures = [Failure(f"actor[{rank}]", "host", "ValueError", "no", method="A.step") for rank in range(10_000)]
    text = str(raised(*failures, name="A.step"))
    assert "and 9999 more of group 'actor'" in text and "actor[64] and 9935 more: ValueError: no" in text
    assert len(text) < 5_000


def test_a_dead_worker_says_which() -> None:
    error = raised(Failure(INFO.label(), "node7 pid 12", "ActorDiedError", "killed by SIGKILL", died=True))
    assert isinstance(error, WorkerDiedError) and not isinstance(error, RemoteCallError)
    assert "actor[1/4] died during Actor.update on node7 pid 12: killed by SIGKILL" in str(error)


PROGRAM = """
import sys
from twinkle_mesh import DeviceGroup
from twinkle_remote import get, remote_class, remote_function, session

@remote_class()
class Model:
    @remote_function(dispatch="all", collect="first")
    def step(self, scale):
        inner = scale * 2
        return inner / 0

with session("threads", groups=[DeviceGroup("one", 1, "CPU")]):
    get(Model(remote_group="one").step(21))
"""


def test_a_debugger_stops_in_the_frame_of_the_method(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    command = [sys.executable, "-m", "pdb", "-c", "continue", "-c", "p ('inner', inner)", "-c", "q", str(file)]
    done = subprocess.run(command, input="q\n", capture_output=True, text=True, timeout=100)
    assert "('inner', 42)" in done.stdout
