"""Random programs of a session: each call runs once or fails, and no failure is silent, whatever is cancelled."""

from __future__ import annotations

import asyncio
import os
import random
from functools import partial
from typing import Any

import pytest
from tests.remote.signals import interrupts

from twinkle_mesh import DeviceGroup
from twinkle_remote import (
    CallCancelledError,
    Lazy,
    NotInitializedError,
    TwinkleError,
    get,
    on,
    release,
    remote_class,
    remote_function,
    session,
    submit,
)
from twinkle_remote.backends.support import call_of

_PROGRAMS = int(os.environ.get("TWINKLE_TEST_PROGRAMS", "15"))
_LOGS: dict[int, list[int]] = {}


@remote_class(concurrency=2)
class Box:
    def __init__(self, number: int) -> None:
        self._log = _LOGS.setdefault(number, [])

    @remote_function(dispatch="all", collect="first")
    def note(self, key: int) -> int:
        self._log.append(key)
        return key

    @remote_function(dispatch="all", collect="first")
    async def anote(self, key: int) -> int:
        await asyncio.sleep(0.0005)
        self._log.append(key)
        return key

    @remote_function(dispatch="all", collect="first")
    async def dreams(self) -> int:
        await asyncio.sleep(600.0)
        return 0

    @remote_function(dispatch="all", collect="first")
    def fails(self, key: int) -> int:
        raise KeyError(key)

    @remote_function(dispatch="all", collect="first")
    async def afails(self, key: int) -> int:
        raise KeyError(key)


class Program:
    """One program, and what is known of each of its calls.

    Attributes:
        calls: Each lazy result.
        wanted: The key that each must give; None for one that must fail.
        cancelled: Those that were cancelled.
        seen: Those whose result or failure was looked at.
        noted: The component of each that notes its key.
        sources: The call whose result each takes.
        released: The components that were released.
        dropped: The keys of calls that have failed, and whose results nobody has any more.
    """

    def __init__(self, seed: int, mode: str) -> None:
        self.rng = random.Random(seed)
        self.mode = mode
        self.boxes: list[Any] = [on(group).create(Box, number) for number, group in enumerate(("one", "two"))]
        self.calls: dict[int, Lazy[Any]] = {}
        self.wanted: dict[int, int | None] = {}
        self.cancelled: set[int] = set()
        self.seen: set[int] = set()
        self.noted: dict[int, int] = {}
        self.sources: dict[int, int] = {}
        self.released: set[int] = set()
        self.dropped: list[int] = []

    def run(self) -> None:
        for key in range(self.rng.randint(3, 14)):
            box = self.rng.randrange(2)
            kinds = ["note", "anote", "note", "fails", "afails", "use", "cancel", "get", "drop"]
            kind = self.rng.choice([*kinds, "interrupt", "release"] if self.mode == "threads" else kinds)
            if self.dropped and kind not in ("cancel", "release", "interrupt"):
                self._is_told_of_the_dropped()
            elif box in self.released and kind not in ("cancel", "get", "interrupt", "release"):
                with pytest.raises(NotInitializedError):
                    get(submit(self.boxes[box].note, key))
            else:
                getattr(self, f"_{kind}")(key, box)

    def _start(self, key: int, lazy: Lazy[Any], wanted: int | None) -> None:
        self.calls[key], self.wanted[key] = lazy, wanted

    def _note(self, key: int, box: int) -> None:
        self._start(key, submit(self.boxes[box].note, key), key)
        self.noted[key] = box

    def _anote(self, key: int, box: int) -> None:
        self._start(key, submit(self.boxes[box].anote, key), key)
        self.noted[key] = box

    def _fails(self, key: int, box: int) -> None:
        self._start(key, submit(self.boxes[box].fails, key), None)

    def _afails(self, key: int, box: int) -> None:
        self._start(key, submit(self.boxes[box].afails, key), None)

    def _use(self, key: int, box: int) -> None:
        if self.calls:
            source = self.rng.choice(list(self.calls))
            self._start(key, submit(self.boxes[box].note, self.calls[source]), self.wanted[source])
            self.sources[key] = source

    def _cancel(self, key: int, box: int) -> None:
        if self.calls:
            chosen = self.rng.choice(list(self.calls))
            self.calls[chosen].cancel()
            self.cancelled.add(chosen)

    def _get(self, key: int, box: int) -> None:
        if self.calls:
            self.check(self.rng.choice(list(self.calls)))

    def _drop(self, key: int, box: int) -> None:
        lazy = submit(self.rng.choice([self.boxes[box].fails, self.boxes[box].afails]), key)
        pending = call_of(lazy)
        assert pending.ends_within(60.0)
        del lazy
        self.dropped.append(key)

    def _is_told_of_the_dropped(self) -> None:
        """Make a call or look at a result, which raises the failure that nobody has retrieved in its place."""
        unread = [key for key in self.calls if key not in self.seen]
        look = bool(unread) and self.rng.random() < 0.5
        call = self.calls[self.rng.choice(unread)].result if look else partial(self.rng.choice(self.boxes).note, 0)
        with pytest.raises(KeyError) as raised:
            call()
        assert raised.value.args == (self.dropped.pop(0),)

    def _release(self, key: int, box: int) -> None:
        if self.rng.random() < 0.3 and box not in self.released:
            release(self.boxes[box])
            self.released.add(box)

    def _interrupt(self, key: int, box: int) -> None:
        if box in self.released:
            return
        lazy = submit(self.boxes[box].dreams)
        with interrupts("_wait_until_over", self.rng.choice([0.0005, 0.003])), pytest.raises(KeyboardInterrupt):
            get(lazy)
        with pytest.raises(CallCancelledError):
            get(lazy)

    def may_be_cancelled(self, key: int) -> bool:
        return key in self.cancelled or (key in self.sources and self.may_be_cancelled(self.sources[key]))

    def check(self, key: int) -> None:
        while self.dropped:
            self._is_told_of_the_dropped()
        self.seen.add(key)
        try:
            value = get(self.calls[key])
        except CallCancelledError:
            assert self.may_be_cancelled(key)
            self.noted.pop(key, None)
        except KeyError:
            assert self.wanted[key] is None
        else:
            assert value == self.wanted[key]

    def must_raise(self) -> bool | None:
        """Whether the end must raise; None if that depends on what was cancelled in time."""
        if self.dropped:
            return True
        unseen = [key for key, wanted in self.wanted.items() if wanted is None and key not in self.seen]
        if any(map(self.may_be_cancelled, [*unseen, *self.sources])):
            return None
        return any(self.origin(key) not in map(self.origin, self.seen) for key in unseen)

    def origin(self, key: int) -> int:
        return self.origin(self.sources[key]) if key in self.sources else key


@pytest.mark.parametrize("mode", ["local", "threads"])
def test_a_session_loses_nothing_and_tells_everything(mode: str) -> None:
    for seed in range(_PROGRAMS):
        one_program(seed, mode)


def one_program(seed: int, mode: str) -> None:
    _LOGS.clear()
    program: Program | None = None
    raised: TwinkleError | None = None
    looks = random.Random(-seed).random() < 0.7
    try:
        with session(mode, groups=[DeviceGroup("one", 1, "CPU"), DeviceGroup("two", 2, "CPU")]):
            program = Program(seed, mode)
            program.run()
            if looks:
                for key in program.calls:
                    program.check(key)
    except TwinkleError as error:
        raised = error
    assert program is not None
    must = program.must_raise()
    assert must is None or (raised is not None) == must, (seed, raised)
    for key, box in program.noted.items():
        users = [user for user in program.sources if program.origin(user) == key]
        ranks = 1 if mode == "local" else box + 1
        certain = key not in program.cancelled and not (box in program.released and key not in program.seen)
        counts = [_LOGS.get(number, []).count(key) for number in range(2)]
        assert sum(counts) <= ranks + 2 * len(users), (seed, key, counts)
        assert not certain or raised is not None or counts[box] >= ranks, (seed, key, counts)
